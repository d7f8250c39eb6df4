"""A list of chains at a glance: counts by year, length, method, resolution and cluster size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.table import Table

from scalefold.chains.candidates import Candidate
from scalefold.raw.chains import Split
from scalefold.split_table import CLUSTER_SIZES, LENGTHS, RESOLUTIONS, SplitTable


def summary_table(chains: Mapping[str, Candidate], splits: Mapping[str, Split]) -> Table:
    """Return how many chains of each split there are, by what is known of them."""
    members = [chains[key] for key in splits]
    trained = Counter(chains[key].cluster for key, split in splits.items() if split == "train")
    table = SplitTable("chains", list(splits.values()))
    dates = (c.release_date for c in members)
    table.add_years("released", (None if d is None else d.year for d in dates))
    sequences = (c.sequence for c in members)
    table.add_counts("residues", LENGTHS, (None if s is None else len(s) for s in sequences))
    table.add_numbers("resolution, Å", RESOLUTIONS, (c.resolution for c in members))
    table.add_names("method", (c.method for c in members))
    if any(c.cluster is not None for c in members):
        sizes = (None if c.cluster is None else trained[c.cluster] for c in members)
        table.add_counts("training chains in its cluster", CLUSTER_SIZES, sizes)
    return table.table
