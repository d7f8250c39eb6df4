"""The figures of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from scalefold.report.calibration import BIN_WIDTH
from scalefold.report.clock import label_steps
from scalefold.report.smoothing import numbers, smoothed, smoothing_window, thinned
from scalefold.report.svg import MUTED, SERIES, inline_svg, new_figure, styled

_MOST_CHAINS_DRAWN: Final = 80
FEWEST_SMOOTHED: Final = 20
"""Records of a curve that has a running mean; shorter ones are drawn as they are."""

_CURVES: Final[dict[str, tuple[str, str, bool]]] = {
    # key: title, unit or meaning of the axis, whether a running mean helps
    "loss": ("Loss, weighted sum", "", True),
    "lddt_ca": ("lDDT-Cα of training crops", "", True),
    "grad_norm": ("Gradient norm", "before clipping", True),
    "learning_rate": ("Learning rate", "", False),
    "samples_per_second": ("Samples a second", "1/s", True),
    "loader_wait_seconds": ("Wait for the loader", "s a step", True),
}


_TERMS: Final = {
    "fape": "FAPE",
    "chi": "side-chain angles",
    "masked_msa": "masked MSA",
    "plddt": "pLDDT",
    "pae": "PAE",
}


@dataclass(frozen=True)
class FigureOnPage:
    """An SVG element and the text below it."""

    svg: str
    caption: str


def training_figures(
    training: Mapping[str, Sequence[Any]], beside: Mapping[str, Any] | None = None
) -> list[FigureOnPage]:
    """One figure a logged quantity: the loss, training lDDT, each term, speed.

    The two large ones have samples and hours below the steps. ``beside`` is another run, whose
    curves are drawn dashed, see `scalefold.report.other_run`.
    """
    terms = sorted(key for key in training if key.startswith("loss/"))
    keys = ["loss", "lddt_ca", *terms, *list(_CURVES)[2:]]
    figures = []
    for number, key in enumerate(keys):
        width, height = (5.6, 3.1) if number < 2 else (4.2, 2.5)
        if any(value is not None for value in training.get(key, ())):
            _, label, smooth = _CURVES.get(key, ("", "unweighted", True))
            figures.append(
                _curve(f"curve-{number}", label, training, key, smooth, (width, height), beside)
            )
    return figures


def curve_title(key: str) -> str:
    """What a column of the metrics log is called on the page."""
    if key in _CURVES:
        return _CURVES[key][0]
    term = key.removeprefix("loss/")
    return "Loss term: " + _TERMS.get(term, term.replace("_", " "))


def _curve(
    name: str,
    label: str,
    training: Mapping[str, Sequence[Any]],
    key: str,
    smooth: bool,
    inches: tuple[float, float],
    beside: Mapping[str, Any] | None,
) -> FigureOnPage:
    steps, values = training["step"], numbers(training[key])
    shown = thinned(len(values))
    x = [steps[i] for i in shown]
    large = key in list(_CURVES)[:2]
    with styled():
        figure, axes = new_figure(*inches)
        if smooth and len(values) >= FEWEST_SMOOTHED:
            mean = smoothed(values, smoothing_window(len(values)))
            axes.plot(x, [values[i] for i in shown], color=SERIES[0], alpha=0.3, linewidth=0.9)
            axes.plot(x, [mean[i] for i in shown], color=SERIES[0], label="this run")
        else:
            style: dict[str, Any] = {
                "marker": "o" if len(values) < FEWEST_SMOOTHED else None,
                "markersize": 3,
            }
            axes.plot(x, [values[i] for i in shown], color=SERIES[0], label="this run", **style)
        if beside is not None and key in beside["training"]:
            _draw_beside(axes, beside, key, smooth)
            if large:
                axes.legend(loc="best")
        axes.set(title=curve_title(key), ylabel=label)
        label_steps(axes, training if large else {})
        axes.yaxis.set_major_locator(MaxNLocator(5))
        finite = [(step, n) for step, n in zip(steps, values, strict=True) if math.isfinite(n)]
        (first_step, first), (last_step, last) = finite[0], finite[-1]
        description = (
            f"{curve_title(key)} over {len(values)} logged steps, from {first:.4g} at step "
            f"{first_step} to {last:.4g} at step {last_step}."
        )
        return FigureOnPage(inline_svg(figure, name, curve_title(key), description), "")


def _draw_beside(axes: Axes, beside: Mapping[str, Any], key: str, smooth: bool) -> None:
    """Draw another run's curve, as its running mean alone."""
    steps, values = beside["training"]["step"], numbers(beside["training"][key])
    if smooth and len(values) >= FEWEST_SMOOTHED:
        values = smoothed(values, smoothing_window(len(values)))
    shown = thinned(len(values))
    axes.plot(
        [steps[i] for i in shown],
        [values[i] for i in shown],
        color=SERIES[1],
        linestyle=(0, (5, 2)),
        linewidth=1.5,
        label=beside["run"],
    )


def lddt_figure(
    evaluations: Sequence[Mapping[str, Any]],
    splits: Sequence[str],
    training: Mapping[str, Sequence[Any]],
    target: float | None,
) -> FigureOnPage | None:
    """Mean lDDT-C-alpha of each split, and of each chain faintly, over the checkpoints.

    ``target`` is ``evaluation.target_lddt``, for the first of its splits; a dashed line.
    """
    steps = [evaluation["step"] for evaluation in evaluations]
    if not steps:
        return None
    with styled():
        figure, axes = new_figure(height=3.4)
        said = []
        for split, colour in zip(splits, SERIES):
            means = numbers(e["mean"].get(split, {}).get("lddt_ca") for e in evaluations)
            for curve in _chain_curves(evaluations, split):
                axes.plot(steps, curve, color=colour, alpha=0.22, linewidth=0.9)
            axes.plot(steps, means, color=colour, marker="o", markersize=4, label=split)
            known = [value for value in means if math.isfinite(value)]
            if known:
                said.append(f"{split} from {known[0]:.3f} to {known[-1]:.3f}")
        if target is not None:
            axes.axhline(target, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), label="target")
            said.append(f"the target is {target:g}")
        axes.set(title="lDDT-Cα by checkpoint", ylabel="mean over chains")
        axes.set_ylim(0, 1)
        label_steps(axes, training)
        figure.legend(loc="outside lower right", ncols=len(splits) + 1)
        description = f"Mean lDDT-Cα over {len(steps)} checkpoints: {'; '.join(said)}."
        return FigureOnPage(
            inline_svg(figure, "lddt", "lDDT-Cα by checkpoint", description),
            "Bold: mean over the chains of a split. Faint: single chains.",
        )


def scores_figure(
    evaluations: Sequence[Mapping[str, Any]], split: str, training: Mapping[str, Sequence[Any]]
) -> FigureOnPage | None:
    """The other scores of one split over the checkpoints."""
    steps = [evaluation["step"] for evaluation in evaluations]
    if not steps:
        return None
    names = {"lddt_all_atom": "lDDT, all atoms", "gdt_ts": "GDT-TS", "tm_score": "TM-score"}
    with styled():
        figure, axes = new_figure(height=3.4)
        said = []
        for (metric, name), colour in zip(names.items(), SERIES):
            means = numbers(e["mean"].get(split, {}).get(metric) for e in evaluations)
            axes.plot(steps, means, color=colour, marker="o", markersize=4, label=name)
            said.append(f"{name} {means[-1]:.3f}")
        title = f"Other scores, {split}"
        axes.set(title=title, ylabel="mean over chains")
        axes.set_ylim(0, 1)
        label_steps(axes, training)
        figure.legend(loc="outside lower right", ncols=3)
        description = f"At the last checkpoint: {', '.join(said)}."
        return FigureOnPage(
            inline_svg(figure, "scores", title, description), "Means over the chains of the split."
        )


def _chain_curves(evaluations: Sequence[Mapping[str, Any]], split: str) -> list[list[float]]:
    """Curves of single chains over the checkpoints; of evenly chosen ones if there are many."""
    keys = sorted({c["chain_key"] for e in evaluations for c in e["chains"] if c["split"] == split})
    by_step = [{c["chain_key"]: c["lddt_ca"] for c in e["chains"]} for e in evaluations]
    chosen = keys[:: max(1, math.ceil(len(keys) / _MOST_CHAINS_DRAWN))]
    return [numbers(scores.get(key) for scores in by_step) for key in chosen]


def calibration_figure(calibration: Mapping[str, Mapping[str, Any]]) -> FigureOnPage | None:
    """Mean true against mean predicted lDDT-C-alpha in bins, above the number of residues."""
    splits = [split for split in calibration if calibration[split]["residues"]]
    if not splits:
        return None
    with styled():
        figure, axes = new_figure(height=4.2)
        figure.delaxes(axes)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        upper.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        width = BIN_WIDTH * 0.8 / len(splits)
        for number, (split, colour) in enumerate(zip(splits, SERIES)):
            bins = [b for b in calibration[split]["bins"] if b["count"]]
            upper.plot(
                [b["mean_plddt"] for b in bins],
                [b["mean_lddt_ca"] for b in bins],
                color=colour,
                marker="o",
                markersize=4.5,
                label=split,
            )
            left = [b["low"] + BIN_WIDTH * 0.1 + number * width for b in bins]
            lower.bar(left, [b["count"] for b in bins], width, align="edge", color=colour)
        upper.set(title="Predicted against true lDDT-Cα", ylabel="true, mean of bin")
        upper.set_xlim(0, 100)
        upper.set_ylim(0, 100)
        upper.legend(loc="upper left")
        lower.set(xlabel="predicted (pLDDT)", ylabel="residues")
        lower.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        lower.grid(False, axis="x")
        said = [
            f"{split}: {calibration[split]['residues']} residues, mean absolute error "
            f"{calibration[split]['mean_absolute_error']:.1f}"
            for split in splits
        ]
        return FigureOnPage(
            inline_svg(figure, "calibration", "Predicted against true lDDT-Cα", "; ".join(said)),
            "On the dashed line the confidence is right; above it the model is better than it "
            "says. Bars: observed residues in each bin.",
        )
