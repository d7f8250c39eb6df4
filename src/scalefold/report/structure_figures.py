"""Figures of one chain: its scores along the sequence, and maps of its pairs of residues."""

from __future__ import annotations

from typing import Final

from scalefold.report.figures import FigureOnPage
from scalefold.report.smoothing import numbers
from scalefold.report.structures import Structure
from scalefold.report.svg import SERIES, inline_svg, new_figure, styled

_MAPS: Final = {
    "distance": ("Distance, distogram", 22.0),
    "true_distance": ("Distance, experiment", 22.0),
    "pae": ("Aligned error, predicted", 32.0),
    "true_pae": ("Aligned error, true", 32.0),
}
"""Titles, and the Å at which the colours end. Two stand side by side."""


def residue_figure(structure: Structure, number: int) -> FigureOnPage:
    """LDDT and pLDDT along the chain."""
    with styled():
        figure, axes = new_figure(5.6, 2.5)
        for row, colour, name in (
            (structure.lddt, SERIES[0], "lDDT-Cα"),
            (structure.plddt, SERIES[1], "pLDDT"),
        ):
            axes.plot(range(1, len(row) + 1), numbers(row), color=colour, label=name, lw=1.4)
        axes.set(title="Along the chain", xlabel="residue", ylabel="0 to 100")
        axes.set_ylim(0, 100)
        axes.set_xlim(1, max(2, len(structure.plddt)))
        axes.legend(loc="upper right", ncols=2, bbox_to_anchor=(1.0, 1.17), borderpad=0)
        title = f"lDDT and pLDDT of {structure.chain_key} by residue"
        known = [value for value in structure.lddt if value is not None]
        said = f"lDDT from {min(known):.0f} to {max(known):.0f}" if known else "no residue scored"
        return FigureOnPage(inline_svg(figure, f"residues-{number}", title, said), "")


def map_figure(structure: Structure, number: int) -> FigureOnPage | None:
    """Maps of predicted and true distances, and aligned errors where the model predicts them."""
    names = [name for name in _MAPS if name in structure.maps]
    if not names:
        return None
    rows, length = len(names) // 2, len(structure.sequence)
    with styled():
        figure, axes = new_figure(5.6, 2.6 * rows)
        figure.delaxes(axes)
        grid = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
        for number_of_map, name in enumerate(names):
            row, column = divmod(number_of_map, 2)
            axes, (title, top) = grid[row, column], _MAPS[name]
            image = axes.imshow(
                structure.maps[name],
                cmap="viridis_r",
                vmin=0.0,
                vmax=top,
                extent=(0.5, length + 0.5, length + 0.5, 0.5),
                interpolation="nearest",
            )
            axes.grid(False)
            axes.set(title=title)
            if column == 1:
                figure.colorbar(image, ax=grid[row].tolist(), label="Å", pad=0.02)
        title = f"Pairs of residues of {structure.chain_key}"
        said = ", ".join(_MAPS[name][0] for name in names)
        svg = inline_svg(figure, f"maps-{number}", title, said)
        caption = "Rows and columns: residues. Empty: not observed."
        if "pae" in names:
            caption += " Aligned errors are of the column's residue, aligned on the row's."
        return FigureOnPage(svg, caption)
