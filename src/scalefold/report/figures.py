"""The figures of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from scalefold.report.calibration import BIN_WIDTH
from scalefold.report.clock import label_steps
from scalefold.report.smoothing import numbers, smoothed, smoothing_window, thinned
from scalefold.report.svg import MUTED, SERIES, FigureOnPage, new_figure, on_page, styled

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


_LARGE: Final = ("loss", "lddt_ca")

_TERMS: Final = {
    "fape": "FAPE",
    "chi": "side-chain angles",
    "masked_msa": "masked MSA",
    "plddt": "pLDDT",
    "pae": "PAE",
}


def training_figures(
    training: Mapping[str, Sequence[Any]], beside: Mapping[str, Any] | None = None
) -> list[FigureOnPage]:
    """One figure a logged quantity: the loss, training lDDT, each term, speed.

    The two large ones have samples and hours below the steps. ``beside`` is another run, whose
    curves are drawn dashed, see `scalefold.report.other_run`.
    """
    terms = sorted(key for key in training if key.startswith("loss/"))
    keys = [*_LARGE, *terms, *(key for key in _CURVES if key not in _LARGE)]
    return [
        _curve(f"curve-{number}", key, training, beside)
        for number, key in enumerate(keys)
        if any(value is not None for value in training.get(key, ()))
    ]


def curve_title(key: str) -> str:
    """What a column of the metrics log is called on the page."""
    if key in _CURVES:
        return _CURVES[key][0]
    term = key.removeprefix("loss/")
    return "Loss term: " + _TERMS.get(term, term.replace("_", " "))


def _curve(
    name: str, key: str, training: Mapping[str, Sequence[Any]], beside: Mapping[str, Any] | None
) -> FigureOnPage:
    _, label, smooth = _CURVES.get(key, ("", "unweighted", True))
    steps, values = training["step"], numbers(training[key])
    is_long = len(values) >= FEWEST_SMOOTHED
    with styled():
        figure, axes = new_figure(5.6, 3.1) if key in _LARGE else new_figure(4.2, 2.5)
        if smooth and is_long:
            _plot(axes, training, key, color=SERIES[0], alpha=0.3, linewidth=0.9)
        marker = None if is_long else "o"
        own = {"color": SERIES[0], "label": "this run", "marker": marker, "markersize": 3}
        _plot(axes, training, key, smooth, **own)
        if beside is not None and key in beside["training"]:
            other = {"color": SERIES[1], "label": beside["run"], "linestyle": (0, (5, 2))}
            _plot(axes, beside["training"], key, smooth, linewidth=1.5, **other)
            if key in _LARGE:
                axes.legend(loc="best")
        axes.set(title=curve_title(key), ylabel=label)
        label_steps(axes, training if key in _LARGE else {})
        axes.yaxis.set_major_locator(MaxNLocator(5))
        finite = [(step, n) for step, n in zip(steps, values, strict=True) if math.isfinite(n)]
        (first_step, first), (last_step, last) = finite[0], finite[-1]
        description = (
            f"{curve_title(key)} over {len(values)} logged steps, from {first:.4g} at step "
            f"{first_step} to {last:.4g} at step {last_step}."
        )
        return on_page(figure, name, curve_title(key), description)


def _plot(
    axes: Axes, columns: Mapping[str, Sequence[Any]], key: str, smooth: bool = False, **style: Any
) -> None:
    """Draw a column of a metrics log, or its running mean."""
    values = numbers(columns[key])
    if smooth and len(values) >= FEWEST_SMOOTHED:
        values = smoothed(values, smoothing_window(len(values)))
    shown = thinned(len(values))
    axes.plot([columns["step"][i] for i in shown], [values[i] for i in shown], **style)


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
        caption = "Bold: mean over the chains of a split. Faint: single chains."
        return on_page(figure, "lddt", "lDDT-Cα by checkpoint", description, caption)


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
        caption = "Means over the chains of the split."
        return on_page(figure, "scores", title, description, caption)


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
        return on_page(
            figure,
            "calibration",
            "Predicted against true lDDT-Cα",
            "; ".join(said),
            "On the dashed line the confidence is right; above it the model is better than it "
            "says. Bars: observed residues in each bin.",
        )
