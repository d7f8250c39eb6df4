"""Figures of the chains of the last evaluation: how good, how long, how deep their alignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from scalefold.report.svg import SERIES, FigureOnPage, new_figure, on_page, styled

_BINS: Final = 20
_AGAINST: Final = {
    "length": ("length", "residues", False),
    "depth": ("alignment_rows", "rows of the alignment", True),
}
_INCHES: Final = (4.2, 2.7)


def chain_figures(chains: Sequence[Mapping[str, Any]], splits: Sequence[str]) -> list[FigureOnPage]:
    """Distribution of lDDT-C-alpha, and lDDT-C-alpha against what the evaluation knows."""
    scored = [chain for chain in chains if chain["lddt_ca"] is not None]
    if not scored:
        return []
    figures = [_distribution(scored, splits)]
    for name, (key, label, logarithmic) in _AGAINST.items():
        known = [chain for chain in scored if chain.get(key)]
        if known:
            figures.append(_against(name, key, label, logarithmic, known, splits))
    return figures


def _distribution(chains: Sequence[Mapping[str, Any]], splits: Sequence[str]) -> FigureOnPage:
    with styled():
        figure, axes = new_figure(*_INCHES)
        values = {split: [c["lddt_ca"] for c in chains if c["split"] == split] for split in splits}
        axes.hist(
            list(values.values()),
            bins=[number / _BINS for number in range(_BINS + 1)],
            color=SERIES[: len(values)],
            label=list(values),
            stacked=True,
        )
        axes.set(title="Distribution of lDDT-Cα", xlabel="lDDT-Cα", ylabel="chains")
        axes.set_xlim(0, 1)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        figure.legend(loc="outside lower right", ncols=3)  # bars may fill the axes
        said = "; ".join(
            f"{split}: {len(row)} chains, from {min(row):.3f} to {max(row):.3f}"
            for split, row in values.items()
            if row
        )
        return on_page(figure, "distribution", "Distribution of lDDT-Cα", said)


def _against(
    name: str,
    key: str,
    label: str,
    logarithmic: bool,
    chains: Sequence[Mapping[str, Any]],
    splits: Sequence[str],
) -> FigureOnPage:
    with styled():
        figure, axes = new_figure(*_INCHES)
        for split, colour in zip(splits, SERIES):
            some = [chain for chain in chains if chain["split"] == split]
            x, y = [chain[key] for chain in some], [chain["lddt_ca"] for chain in some]
            axes.scatter(x, y, s=14, color=colour, alpha=0.8, linewidths=0)
        title = f"lDDT-Cα against {name}"
        axes.set(title=title, xlabel=label, ylabel="lDDT-Cα")
        axes.set_ylim(0, 1)
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_xlim(left=0)
        said = f"{len(chains)} chains, from {min(c[key] for c in chains):,} to "
        said += f"{max(c[key] for c in chains):,} {label}."
        return on_page(figure, f"against-{name}", title, said)
