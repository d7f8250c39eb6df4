"""The data set: how many chains of each split there are, by what is known of them; its audit."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from scalefold.raw.rejected import Rejected
from scalefold.report.svg import SERIES, FigureOnPage, new_figure, on_page, styled
from scalefold.shards.audit import audit, chain_counts
from scalefold.shards.reader import ShardReader
from scalefold.shards.schema import INDEX_FILE
from scalefold.split_table import SPLITS

_DRAWN: Final = {
    "released": ("Years of release", ""),
    "residues": ("Lengths", "residues"),
    "alignment rows": ("Depths of alignments", "rows"),
    "resolution, Å": ("Resolutions", "Å"),
    "method": ("Methods", ""),
    "training chains in its cluster": ("Sizes of clusters", "training chains"),
    "% covered by the best template": ("Residues that the best template covers", "%"),
}
"""Properties with a figure, its title and unit; the table has all."""
_ORDER: Final = ("validation", "train", "template")
"""Colours are given in this order, as in the figures of evaluations."""


@dataclass(frozen=True)
class DataSet:
    """What a report says of the shards.

    Attributes
    ----------
    counts : list of dict
        ``what``, a property such as ``residues``; ``lines``: of each range of it the ``group``, as
        ``50 to 99``, and the number of chains by split. The first counts all chains. Empty where
        the shards are not there.
    audit : list of dict
        Of `scalefold.shards.audit.Amiss`.
    """

    counts: list[dict[str, Any]] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)


@functools.lru_cache(1)  # a monitor asks again and again
def _counted(shards: Path, manifest_sha256: str, rejected: tuple[Rejected, ...]) -> DataSet:
    reader = ShardReader(shards)
    counts = [
        {
            "what": section.what,
            "lines": [
                {"group": group, **dict(zip(SPLITS, counts, strict=True))}
                for group, counts in section.lines
            ],
        }
        for section in chain_counts(reader).sections
    ]
    return DataSet(counts, [asdict(line) for line in audit(reader.index, rejected)])


def data_set(shards: Path, manifest_sha256: str | None, rejected: Sequence[Rejected]) -> DataSet:
    """Count the chains of a shard folder, and audit them.

    Parameters
    ----------
    manifest_sha256 : str or None
        Of its manifest; None where that cannot be read.
    rejected : sequence of Rejected
        Its table of rejected chains.

    Raises
    ------
    InputError
        The shards are damaged, or not those of the manifest.
    """
    is_there = manifest_sha256 is not None and (shards / INDEX_FILE).is_file()
    return _counted(shards, manifest_sha256 or "", tuple(rejected)) if is_there else DataSet()


def data_figures(sections: Sequence[Mapping[str, Any]]) -> list[FigureOnPage]:
    """Draw which share of each split's chains is in each range of a property."""
    found = {section["what"]: section["lines"] for section in sections}
    figures = []
    for number, (what, words) in enumerate(_DRAWN.items()):
        lines = [line for line in found.get(what, ()) if line["group"] != "none"]
        if any(line["group"] != "unknown" for line in lines):
            figures.append(_bars(f"data-{number}", words, lines))
    return figures


def _bars(name: str, words: tuple[str, str], lines: Sequence[Mapping[str, Any]]) -> FigureOnPage:
    title, unit = words
    totals = {split: sum(line[split] for line in lines) for split in _ORDER}
    filled = [split for split in _ORDER if totals[split]]
    with styled():
        figure, axes = new_figure()
        width = 0.8 / len(filled)
        for number, split in enumerate(filled):
            left = [place - 0.4 + number * width for place in range(len(lines))]
            shares = [100 * line[split] / totals[split] for line in lines]
            colour = SERIES[_ORDER.index(split)]
            axes.bar(left, shares, width, align="edge", color=colour, label=split)
        axes.set(title=title, xlabel=unit, ylabel="% of a split's chains")
        groups = [textwrap.fill(line["group"], 20) for line in lines]
        axes.set_xticks(range(len(lines)), groups, rotation=40, ha="right", rotation_mode="anchor")
        axes.grid(False, axis="x")
        figure.legend(loc="outside lower right", ncols=3)  # bars may fill the axes
        said = "; ".join(_most(lines, split, unit) for split in filled)
        return on_page(figure, name, title, said)


def _most(lines: Sequence[Mapping[str, Any]], split: str, unit: str) -> str:
    total, most = sum(line[split] for line in lines), max(line[split] for line in lines)
    group = next(line["group"] for line in lines if line[split] == most)
    return f"{total:,} {split} chains, most of them {group} {unit}".rstrip()
