"""The figure of ``scalefold bench ladder``: seconds of a mean step, rung by rung."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes
from scalefold.report.svg import INK, SERIES, FigureOnPage, new_figure, on_page, styled

_INCHES_A_RUNG = 0.3


def ladder_figure(ladder: Mapping[str, Any]) -> FigureOnPage | None:
    """For the report; None where no rung was measured."""
    rows = _measured(ladder)
    if not rows:
        return None
    with styled():
        figure, axes = new_figure(7.2, 1.2 + _INCHES_A_RUNG * len(rows))
        _draw(axes, ladder, rows, (SERIES[0], SERIES[1]), INK)
        first, last = (_total(rows[i]) for i in (0, -1))
        description = (
            f"Seconds of a mean training step on {ladder['device']}, from {first:.3f} "
            f"({rows[0]['rung']}) to {last:.3f} ({rows[-1]['rung']})."
        )
        caption = "Each rung adds to the ones before it."
        return on_page(figure, "ladder", "Seconds of a mean step", description, caption)


def save_ladder(ladder: Mapping[str, Any], file: Path) -> None:
    """Draw it into a file, atomically; the suffix says the type.

    Raises
    ------
    InputError
        No rung was measured, figures have no such type, or the file cannot be written.
    """
    rows = _measured(ladder)
    if not rows:
        raise InputError("--plot: no rung was measured, so there is nothing to draw")
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "ladder", "text.parse_math": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.2, 1.2 + _INCHES_A_RUNG * len(rows)), layout="constrained")
        _draw(figure.add_subplot(), ladder, rows, ("#2f6f9f", "#c98a2b"), "#222222")
        kind, drawn = file.suffix.removeprefix("."), BytesIO()
        try:
            figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except ValueError as error:
            raise InputError(f"--plot {file}: {error}") from None
    write_bytes(file, drawn.getvalue())


def _draw(
    axes: Axes,
    ladder: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    colours: tuple[str, str],
    ink: str,
) -> None:
    steps = [row["mean_step_seconds"] for row in rows]
    loading = [row.get("loading_seconds", 0.0) for row in rows]
    names = [("" if number == 0 else "+ ") + row["rung"] for number, row in enumerate(rows)]
    places = range(len(rows))
    axes.barh(places, steps, color=colours[0], label="step")
    if any(loading):
        axes.barh(places, loading, left=steps, color=colours[1], label="waiting for samples")
        axes.figure.legend(loc="outside lower right", ncols=2, frameon=False)  # bars end below axes
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            f"{_total(row):.3f} s  ×{_total(rows[0]) / _total(row):.1f}",
            (_total(row), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=ink,
        )
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.grid(False, axis="y")
    axes.set(title=f"Mean training step, {ladder['device']}", xlabel="seconds")


def _measured(ladder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in ladder["rungs"] if "mean_step_seconds" in row]


def _total(row: Mapping[str, Any]) -> float:
    return float(row["mean_step_seconds"] + row.get("loading_seconds", 0.0))
