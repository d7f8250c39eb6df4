"""Figures of one chain: its scores along the sequence, and maps of its pairs of residues."""

from __future__ import annotations

from typing import Final, NamedTuple

from scalefold.report.smoothing import numbers
from scalefold.report.structures import ViewerChain
from scalefold.report.svg import SERIES, FigureOnPage, new_figure, on_page, styled

_MAPS: Final = {
    "distance": ("Distance, distogram", 22.0),
    "true_distance": ("Distance, experiment", 22.0),
    "pae": ("Aligned error, predicted", 32.0),
    "true_pae": ("Aligned error, true", 32.0),
}
"""Titles, and the Å at which the colours end. Two stand side by side."""


class Drawn(NamedTuple):
    """A chain of the viewer with its figures."""

    structure: ViewerChain
    residues: FigureOnPage
    maps: FigureOnPage | None


def drawn(structure: ViewerChain, number: int) -> Drawn:
    """Draw the figures of a chain; ``number`` is its place in the page."""
    return Drawn(structure, _residue_figure(structure, number), _map_figure(structure, number))


def _residue_figure(structure: ViewerChain, number: int) -> FigureOnPage:
    """LDDT, where the true structure is known, and pLDDT along the chain."""
    scores = [("lDDT-Cα", structure.lddt, SERIES[0]), ("pLDDT", structure.plddt, SERIES[1])]
    scores = scores if structure.lddt else scores[1:]
    with styled():
        figure, axes = new_figure(5.6, 2.5)
        for name, row, colour in scores:
            axes.plot(range(1, len(row) + 1), numbers(row), color=colour, label=name, lw=1.4)
        axes.set(title="Along the chain", xlabel="residue", ylabel="0 to 100")
        axes.set_ylim(0, 100)
        axes.set_xlim(1, max(2, len(structure.plddt)))
        axes.legend(loc="upper right", ncols=2, bbox_to_anchor=(1.0, 1.17), borderpad=0)
        names = " and ".join(name for name, _, _ in scores)
        title = f"{names} of {structure.chain_key} by residue"
        known = [value for value in scores[0][1] if value is not None]
        said = f"from {min(known):.0f} to {max(known):.0f}" if known else "no residue scored"
        said = f"{scores[0][0]} {said}"
        return on_page(figure, f"residues-{number}", title, said)


def _map_figure(structure: ViewerChain, number: int) -> FigureOnPage | None:
    """Maps of predicted and true distances, and aligned errors where the model predicts them."""
    names = [name for name in _MAPS if name in structure.maps]
    if not names:
        return None
    columns, length = min(2, len(names)), len(structure.sequence)
    rows = len(names) // columns
    with styled():
        figure, axes = new_figure(5.6, 2.6 * rows if columns == 2 else 3.6)
        figure.delaxes(axes)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for number_of_map, name in enumerate(names):
            row, column = divmod(number_of_map, columns)
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
            if column == columns - 1:
                figure.colorbar(image, ax=grid[row].tolist(), label="Å", pad=0.02)
        title = f"Pairs of residues of {structure.chain_key}"
        said = ", ".join(_MAPS[name][0] for name in names)
        caption = "Rows and columns: residues."
        if "true_distance" in names:
            caption += " Empty: not observed."
        if "pae" in names:
            caption += " Aligned errors are of the column's residue, aligned on the row's."
        return on_page(figure, f"maps-{number}", title, said, caption)
