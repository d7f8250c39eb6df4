"""The list of chains: which of them train, and which are held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from scalefold.chains.make import make_chain_list
from scalefold.chains.splits import RELATIVE, Rules
from scalefold.errors import counted
from scalefold.finetune.request import Request
from scalefold.io.atomic import write_bytes
from scalefold.raw.chains import Split
from scalefold.raw.rejected import Rejected

RELATIVES: Final = "relatives"
"""Stage of chains that are left out so that a held-out chain has no relatives in training."""
FEW_CLUSTERS: Final = 20
"""Below, a tenth of the clusters is one chain, and one chain's score is mostly chance."""


@dataclass(frozen=True)
class Listing:
    """How the chains were divided.

    Attributes
    ----------
    num_clusters : int
        Of the chains that are listed or left out as relatives; equal sequences are in one.
    """

    counts: Counter[Split]
    num_clusters: int
    left_out: list[Rejected]

    @property
    def warnings(self) -> list[str]:
        """What a user must know before the training begins."""
        if self.num_clusters >= FEW_CLUSTERS or not self.counts["validation"]:
            return []
        return [
            f"warning: only {counted(self.num_clusters, 'cluster')} of similar sequences, fewer "
            f"than {FEW_CLUSTERS}. The score of "
            f"{counted(self.counts['validation'], 'held-out chain')} is mostly chance, and so is "
            "an early stop by it. Add structures of other proteins, or give --validation 0 to "
            "train on all"
        ]


def list_chains(request: Request, sequences: Mapping[str, str], jobs: int) -> Listing:
    """Cluster chains by sequence, hold some clusters out, and write the list.

    Raises
    ------
    InputError
        MMseqs2 is missing or fails, the clusters do not fit, or nothing is left to train on.
    """
    text = "".join(f">{key}\n{sequence}\n" for key, sequence in sequences.items())
    write_bytes(request.sequences, text.encode())
    computed = request.clusters in ("mmseqs", "none")
    clusters = cast(
        "Path | Literal['mmseqs', 'none']", request.clusters if computed else Path(request.clusters)
    )
    rules = Rules(num_validation=request.validation)
    made = make_chain_list([request.sequences], clusters, rules, request.chains, jobs=jobs)
    splits = made.choice.splits
    held = {
        mark
        for key, split in splits.items()
        if split == "validation"
        for mark in made.chains[key].marks
    }
    filters = ", or ".join(reason for reason in made.choice.taken if reason != RELATIVE)
    left_out = [
        Rejected(key, RELATIVES, "a relative of a held-out chain, which training must not see")
        if not held.isdisjoint(chain.marks)
        else Rejected(key, "list", filters)
        for key, chain in sorted(made.chains.items())
        if key not in splits
    ]
    clusters_there = {
        chain.marks[0]
        for key, chain in made.chains.items()
        if key in splits or not held.isdisjoint(chain.marks)
    }
    return Listing(Counter(splits.values()), len(clusters_there), left_out)
