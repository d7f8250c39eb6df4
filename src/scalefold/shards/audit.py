"""A data set at a glance: counts by split, and what a group would want to know before training."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from scalefold.raw.rejected import Rejected
from scalefold.shards.index_table import as_one_integer
from scalefold.shards.reader import ShardReader
from scalefold.shards.schema import FORMER_VERSION, shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.split_table import CLUSTER_SIZES, LENGTHS, RESOLUTIONS, SplitTable

_DEPTHS: Final = (1, 2, 10, 100, 1000, 5000, 10_000, 20_000)
_HITS: Final = (0, 1, 4, 20, 100)
_COVERAGE: Final = (0, 1, 25, 50, 75, 95)
_NAMES: Final = re.compile(r"\S*[\d/_']\S*")
_MOST_REASONS: Final = 12
_REASON_LENGTH: Final = 100


@dataclass(frozen=True)
class Amiss:
    """Something that may be amiss with a data set, how many chains have it, the first of them."""

    what: str
    chains: int
    first: str


@dataclass(frozen=True)
class Reason:
    """Why chains are set aside.

    Attributes
    ----------
    reason : str
        Without the names and numbers of a single chain.
    first : Rejected
        One of them, with its whole reason.
    """

    stage: str
    reason: str
    chains: int
    first: Rejected


def chain_counts(reader: ShardReader) -> SplitTable:
    """Return how many chains of each split there are, by what the index and the shards say."""
    index = reader.index
    table = SplitTable("chains", index["split"].to_pylist())
    table.add_years("released", pc.year(index["release_date"]).to_pylist())
    table.add_counts("residues", LENGTHS, index["length"].to_pylist())
    table.add_numbers("resolution, Å", RESOLUTIONS, index["resolution"].to_pylist())
    table.add_names("method", _column(reader, "chain", "method"))
    clusters = index["cluster_id"].is_valid().to_pylist()
    sizes = index["cluster_size"].to_pylist()
    table.add_counts(
        "training chains in its cluster",
        CLUSTER_SIZES,
        [size if known else None for size, known in zip(sizes, clusters, strict=True)],
    )
    is_former = reader.manifest.schema_version == FORMER_VERSION
    hits = ("msa", "templates") if is_former else ("templates", "located")
    for what, edges, (family, column) in (
        ("alignment rows", _DEPTHS, ("msa", "num_seq")),
        ("template hits kept", _HITS, hits),
    ):
        table.add_counts(what, edges, _column(reader, family, column), absent="none")
    covered = [None] * len(index) if is_former else _column(reader, "templates", "covered")
    shares = [
        None if residues is None else 100 * residues // length
        for residues, length in zip(covered, index["length"].to_pylist(), strict=True)
    ]
    absent = "unknown" if is_former else "none"
    table.add_counts("% covered by the best template", _COVERAGE, shares, absent)
    return table


def _column(reader: ShardReader, family: str, column: str) -> list[Any]:
    """Return a column of a family for each chain, of lists their lengths; None without a row."""
    kind = "chain" if family == "chain" else "msa"
    shards, rows = (reader.index[f"{kind}_{name}"].to_pylist() for name in ("shard", "row"))
    values: dict[int | None, dict[int, Any]] = {None: {}}
    for shard in sorted(set(shards) - {None}):
        file = ShardFile(reader.folder / shard_file(family, shard), family)
        values[shard] = {}
        for row, array in enumerate(file.scan(column)):
            of_row = pc.list_value_length(array) if pa.types.is_list(array.type) else array
            values[shard][row] = of_row[0].as_py()
    return [values[shard].get(row) for shard, row in zip(shards, rows, strict=True)]


def audit(index: pa.Table, rejected: Iterable[Rejected]) -> list[Amiss]:
    """Return what may be amiss with a data set, also what no chain has."""
    samples = index.filter(pc.is_in(index["split"], pa.array(["train", "validation"])))
    there = set(index["chain_key"].to_pylist())
    halves: dict[str, list[str]] = {"structure": [], "alignment": []}
    for rejection in rejected:
        half = "alignment" if rejection.chain_key in there else "structure"
        halves[half].append(rejection.chain_key)
    sets = {
        **{f"listed, but without {half}": keys for half, keys in halves.items()},
        "samples without a cluster": _keys(samples, pc.is_null(samples["cluster_id"])),
        "samples without a date (no templates)": _keys(
            samples, pc.is_null(samples["release_date"])
        ),
        "samples without a resolution": _keys(samples, pc.is_null(samples["resolution"])),
        "training chains in a validation chain's cluster": _leaks(index, "cluster_id"),
        "training chains with a validation chain's sequence": _leaks(index, "seq_id"),
        "samples that share an alignment": _sharing(samples),
    }
    return [
        Amiss(what, len(keys), str(keys[0]) if len(keys) else "") for what, keys in sets.items()
    ]


def by_reason(rejected: Iterable[Rejected]) -> list[Reason]:
    """Count chains by stage and reason, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Rejected] = {}
    for rejection in rejected:
        words = _NAMES.sub("...", rejection.reason)
        words = textwrap.shorten(words, _REASON_LENGTH, placeholder=" …")
        counts[rejection.stage, words] += 1
        first.setdefault((rejection.stage, words), rejection)
    return [Reason(*key, number, first[key]) for key, number in counts.most_common()]


def audit_table(index: pa.Table, rejected: Sequence[Rejected]) -> Table:
    """Return `audit` and the most frequent of `by_reason` as one table for a console."""
    table = Table(title="audit", title_justify="left")
    for column in ("what", "chains", "first"):
        table.add_column(column, overflow="fold")
    for line in audit(index, rejected):
        table.add_row(line.what, f"{line.chains:,}", line.first)
    reasons = by_reason(rejected)
    for one in reasons[:_MOST_REASONS]:
        what = f"set aside, {one.stage}: {one.reason}"
        table.add_row(what, f"{one.chains:,}", one.first.chain_key)
    if others := reasons[_MOST_REASONS:]:
        chains = sum(one.chains for one in others)
        table.add_row(f"set aside, {len(others):,} other reasons", f"{chains:,}", "")
    return table


def _sharing(samples: pa.Table) -> pa.ChunkedArray:
    """Return the samples whose alignment is another's, too."""
    places = as_one_integer(samples["msa_shard"], samples["msa_row"]).to_numpy()
    _, number, counts = np.unique(places, return_inverse=True, return_counts=True)
    return _keys(samples, pa.array(counts[number] > 1))


def _leaks(index: pa.Table, column: str) -> pa.ChunkedArray:
    """Return the training chains with a value that a validation chain has, too."""
    train = index.filter(pc.equal(index["split"], "train"))
    validation = index.filter(pc.equal(index["split"], "validation"))
    held = validation[column].combine_chunks().drop_null()
    return _keys(train, pc.is_in(train[column], value_set=held, skip_nulls=True))


def _keys(table: pa.Table, chosen: pa.ChunkedArray) -> pa.ChunkedArray:
    return table["chain_key"].filter(chosen)
