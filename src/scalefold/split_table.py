"""How many chains of each split there are, by what is known of them: as numbers and as a table."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.table import Table

SPLITS: Final = ("train", "validation", "template")
YEARS: Final = (1990, 2000, 2005, 2010, 2015, 2018, 2020, 2021, 2022, 2023, 2024, 2025, 2026)
LENGTHS: Final = (20, 50, 100, 200, 300, 400, 512, 700, 1000, 2000)
RESOLUTIONS: Final = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0)
CLUSTER_SIZES: Final = (0, 1, 2, 5, 10, 50, 100, 500, 1000)
_MOST_NAMES: Final = 8


@dataclass(frozen=True)
class TableSection:
    """A property of chains, and how many have which value.

    Attributes
    ----------
    what : str
        The property.
    lines : list of (str, list of int)
        Each value or range of values that some chain has, and the counts by `SPLITS`.
    """

    what: str
    lines: list[tuple[str, list[int]]]


class SplitTable:
    """One column a split, one section a property.

    Parameters
    ----------
    title
        Stands above.
    splits
        The split of each chain; every property is given in the same order.

    Attributes
    ----------
    sections : list of TableSection
        The first counts all chains.
    """

    def __init__(self, title: str, splits: Sequence[str]) -> None:
        self._title, self._splits = title, splits
        self.sections: list[TableSection] = []
        self._add("all", [""] * len(splits), [""])

    @property
    def table(self) -> Table:
        """For a console."""
        table = Table(title=self._title, title_justify="left")
        table.add_column("")
        for split in SPLITS:
            table.add_column(split, justify="right")
        for section in self.sections:
            for number, (name, counts) in enumerate(section.lines, start=1):
                cells = (f"{count:,}" for count in counts)
                is_last = number == len(section.lines)
                label = f"{section.what}: {name}" if name else section.what
                table.add_row(label, *cells, end_section=is_last)
        return table

    def add_names(self, what: str, values: Iterable[str | None]) -> None:
        """Add a line for each of the most frequent values, and one for the others."""
        names = [value or "unknown" for value in values]
        common = [name for name, _ in Counter(names).most_common(_MOST_NAMES)]
        shown = [name if name in common else "other" for name in names]
        self._add(what, shown, [*common, "other"])

    def add_numbers(
        self, what: str, edges: Sequence[float], values: Iterable[float | None]
    ) -> None:
        """Add a line for each filled range from one edge to below the next."""
        ranges = [f"{low} to < {high}" for low, high in pairwise(edges)]
        self._add_ranges(what, edges, (f"< {edges[0]}", *ranges, f">= {edges[-1]}"), values)

    def add_counts(
        self,
        what: str,
        edges: Sequence[int],
        values: Iterable[int | None],
        absent: str = "unknown",
    ) -> None:
        """Add a line for each filled range of whole numbers; ``None`` is ``absent``."""
        ranges = [
            f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
            for low, high in pairwise(edges)
        ]
        last = f"{edges[-1]:,} or more"
        self._add_ranges(what, edges, (f"below {edges[0]:,}", *ranges, last), values, absent)

    def add_years(self, what: str, values: Iterable[int | None]) -> None:
        """Add a line for each filled range of years."""
        ranges = [
            f"{low}" if high == low + 1 else f"{low} to {high - 1}" for low, high in pairwise(YEARS)
        ]
        names = (f"before {YEARS[0]}", *ranges, f"{YEARS[-1]} or later")
        self._add_ranges(what, YEARS, names, values)

    def _add_ranges(
        self,
        what: str,
        edges: Sequence[float],
        ranges: Sequence[str],
        values: Iterable[float | None],
        absent: str = "unknown",
    ) -> None:
        names = [absent if v is None else ranges[bisect_right(edges, v)] for v in values]
        self._add(what, names, (*ranges, absent))

    def _add(self, what: str, names: Iterable[str], order: Iterable[str]) -> None:
        counts = Counter(zip(names, self._splits, strict=True))
        lines = [(name, [counts[name, split] for split in SPLITS]) for name in order]
        self.sections.append(TableSection(what, [(name, row) for name, row in lines if any(row)]))
