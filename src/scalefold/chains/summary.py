"""A list of chains at a glance: counts by year, length, method, resolution and cluster size."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from rich.table import Table

from scalefold.chains.candidates import Candidate
from scalefold.raw.chains import Split

_SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "template")
_YEARS: Final = (1990, 2000, 2005, 2010, 2015, 2018, 2020, 2021, 2022, 2023, 2024, 2025, 2026)
_LENGTHS: Final = (20, 50, 100, 200, 300, 400, 512, 700, 1000, 2000)
_RESOLUTIONS: Final = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0)
_SIZES: Final = (2, 5, 10, 50, 100, 500, 1000)


def summary_table(chains: Mapping[str, Candidate], splits: Mapping[str, Split]) -> Table:
    """Return how many chains of each split there are, by what is known of them."""
    table = Table(title="chains", title_justify="left")
    table.add_column("")
    for split in _SPLITS:
        table.add_column(split, justify="right")
    members = [(chains[key], split) for key, split in splits.items()]
    _add(table, members, lambda chain: "all", ["all"])
    sizes = Counter(chain.cluster for chain, split in members if split == "train")
    _add_binned(table, members, "released", _YEARS, _year)
    _add_binned(table, members, "residues", _LENGTHS, lambda c: c.sequence and len(c.sequence))
    _add_binned(table, members, "resolution, Å", _RESOLUTIONS, lambda c: c.resolution)
    methods = Counter(chain.method or "unknown" for chain, _ in members)
    names = [f"method {name}" for name, _ in methods.most_common(8)]
    _add(table, members, lambda c: f"method {c.method or 'unknown'}", names)
    _add_binned(
        table,
        members,
        "training chains in cluster",
        _SIZES,
        lambda c: c.cluster and sizes[c.cluster],
    )
    return table


def _year(chain: Candidate) -> int | None:
    return None if chain.release_date is None else chain.release_date.year


def _add_binned(
    table: Table,
    members: Sequence[tuple[Candidate, Split]],
    what: str,
    edges: Sequence[float],
    value_of: Callable[[Candidate], float | str | None],
) -> None:
    """Add one line for each filled range between two edges, and one for what is unknown."""
    ranges = [
        f"{what} < {edges[0]}",
        *(f"{what} {low} to < {high}" for low, high in pairwise(edges)),
        f"{what} >= {edges[-1]}",
        f"{what} unknown",
    ]

    def name(chain: Candidate) -> str:
        value = value_of(chain)
        return ranges[-1] if value is None else ranges[bisect_right(edges, float(value))]

    _add(table, members, name, ranges)


def _add(
    table: Table,
    members: Iterable[tuple[Candidate, Split]],
    name_of: Callable[[Candidate], str],
    names: Sequence[str],
) -> None:
    counts = Counter((name_of(chain), split) for chain, split in members)
    filled = [name for name in names if any(counts[name, split] for split in _SPLITS)]
    for number, name in enumerate(filled, start=1):
        cells = (f"{counts[name, split]:,}" for split in _SPLITS)
        table.add_row(name, *cells, end_section=number == len(filled))
