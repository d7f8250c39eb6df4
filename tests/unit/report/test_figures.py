"""What figures must keep apart: legends and bars, ticks of an axis."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scalefold.report import data_set
from scalefold.report.clock import label_steps
from scalefold.report.svg import FigureOnPage, new_figure, on_page


@pytest.mark.parametrize("steps", [[4], [1, 2], [100, 200, 300]], ids=len)
def test_ticks_of_steps_are_whole_and_different(steps: list[int]) -> None:
    figure, axes = new_figure()
    axes.plot(steps, [0.5] * len(steps))
    label_steps(axes, {"step": steps})
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)


def test_the_legend_lies_over_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure, *words: str) -> FigureOnPage:
        figures.append(figure)
        return on_page(figure, *words)

    monkeypatch.setattr(data_set, "on_page", keep)
    line = {"group": "50 to 99", "train": 2, "validation": 1, "template": 1}
    data_set.data_figures([{"what": "residues", "lines": [line]}])
    (figure,) = figures
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legends = [x for x in (axes.get_legend(), *figure.legends) if x is not None]
    assert len(legends) == 1
    box = legends[0].get_window_extent()
    assert not any(box.overlaps(bar.get_window_extent()) for bar in _bars(axes))


def _bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]
