"""What stands out in a run, in words."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scalefold.errors import counted
from scalefold.finetune.listing import FEW_CLUSTERS
from scalefold.progress import duration_in_words
from scalefold.report.inputs import RunResults
from scalefold.report.smoothing import smoothed, smoothing_window

_PARTING: Final = 0.02
"""A change of mean lDDT that is more than noise."""
_SPIKE: Final = 8.0
"""Median deviations from the running mean that make a spike."""
_FEWEST_RECORDS: Final = 40
_STARVED: Final = 0.05
_SLOWER: Final = 1.3
_CONFIDENT: Final = 10.0
_BROKEN: Final = 0.02


def findings(files: RunResults, calibration: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what a reader should look at; nothing where all is as it should be.

    Parameters
    ----------
    calibration : mapping
        By split, see `scalefold.report.calibration.calibration`.
    """
    return [
        *_few_chains(files.evaluations),
        *_parted(files.evaluations),
        *_not_finite(files.metrics),
        *_spikes(files.metrics),
        *_starved(files.metrics),
        *_slowed(files.metrics),
        *_interrupted(files),
        *_confidence(calibration),
        *_geometry(files),
    ]


def _few_chains(evaluations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The held-out score is over few chains; a score of train alone says what was memorised."""
    for last in evaluations[-1:]:
        count = sum(
            chain["split"] == "validation" and chain["lddt_ca"] is not None
            for chain in last["chains"]
        )
        if 0 < count < FEW_CLUSTERS:
            rest = "is evaluated: its score" if count == 1 else "are evaluated: their mean"
            yield f"Only {counted(count, 'validation chain')} {rest} is mostly chance."


def _parted(evaluations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The train score still improves while the validation score falls."""
    points = [
        (e["step"], e["mean"]["train"]["lddt_ca"], e["mean"]["validation"]["lddt_ca"])
        for e in evaluations
        if {"train", "validation"} <= e["mean"].keys()
    ]
    points = [point for point in points if None not in point]
    if not points:
        return
    step, train, validation = max(points, key=lambda point: point[2])
    last_step, last_train, last_validation = points[-1]
    if last_train - train > _PARTING and validation - last_validation > _PARTING:
        yield (
            f"Train and validation diverge after step {step:,}. Until step {last_step:,} the mean "
            f"lDDT-Cα of train rises from {train:.3f} to {last_train:.3f}; that of validation "
            f"falls from {validation:.3f} to {last_validation:.3f}. The model memorises its "
            "training chains. More chains, or an earlier end, would help."
        )


def _not_finite(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    counts = [(r["step"], r["skipped_steps"]) for r in metrics if r.get("skipped_steps")]
    if counts:
        (first, _), (_, total) = counts[0], counts[-1]
        steps = "step was" if total == 1 else "steps were"
        yield (
            f"{total:,.0f} {steps} not applied, because the loss or the gradient was not finite; "
            f"the first one by step {first:,}."
        )


def _spikes(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    points = [(r["step"], r["loss"]) for r in metrics if r.get("loss") is not None]
    if len(points) < _FEWEST_RECORDS:
        return
    losses = [loss for _, loss in points]
    above = [x - mean for x, mean in zip(losses, smoothed(losses, smoothing_window(len(losses))))]
    usual = statistics.median(map(abs, above))
    spikes = [(extra, *point) for extra, point in zip(above, points) if extra > _SPIKE * usual > 0]
    if spikes:
        _, step, loss = max(spikes)
        times = "once" if len(spikes) == 1 else f"{len(spikes)} times"
        yield (
            f"The loss jumps {times} far above its course, the most at step {step:,}, "
            f"to {loss:.3g}."
        )


def _starved(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    # The first record waits for the loader's start.
    known = [
        (r["loader_wait_seconds"], r["step_seconds"])
        for r in metrics[1:]
        if r.get("loader_wait_seconds") is not None and r.get("step_seconds")
    ]
    if not known:
        return
    waited, taken = (sum(column) for column in zip(*known))
    if waited > _STARVED * taken:
        yield (
            f"Training waits for the loader {100 * waited / taken:.0f}% of its time. Give it more "
            "CPU cores and training.loader_workers, or put the shards on a faster disk."
        )


def _slowed(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    speeds = [r["samples_per_second"] for r in metrics if r.get("samples_per_second")]
    if len(speeds) < _FEWEST_RECORDS:
        return
    quarter = len(speeds) // 4
    first, last = statistics.median(speeds[:quarter]), statistics.median(speeds[-quarter:])
    if first > _SLOWER * last:
        yield (
            f"Training has slowed down: {first:.3g} samples a second in its first quarter, "
            f"{last:.3g} in its last. Another process may share the machine."
        )


def _interrupted(files: RunResults) -> Iterator[str]:
    sessions = files.sessions
    if len(sessions) > 1:
        paused = sum(max(0.0, b.started - a.ended) for a, b in itertools.pairwise(sessions))
        took = f"Training took {len(sessions)} sessions"
        yield f"{took}, with pauses of {duration_in_words(paused)} in all."
    killed = sum(session.max_rss_mb is None for session in sessions[:-1])
    if killed:
        yield f"{killed} of these sessions ended without a note: killed, or the machine failed."


def _confidence(calibration: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for split, result in calibration.items():
        bins = [b for b in result["bins"] if b["count"]]
        count = sum(b["count"] for b in bins)
        if not count:
            continue
        bias = sum(b["count"] * (b["mean_plddt"] - b["mean_lddt_ca"]) for b in bins) / count
        if abs(bias) > _CONFIDENT:
            word = "higher" if bias > 0 else "lower"
            yield f"pLDDT of {split} is {abs(bias):.0f} points {word} than lDDT-Cα on average."


def _geometry(files: RunResults) -> Iterator[str]:
    chains = [
        chain
        for evaluation in files.evaluations[-1:]
        for chain in evaluation["chains"]
        if chain.get("peptide_bonds") and chain.get("broken_bonds") is not None
    ]
    bonds = sum(chain["peptide_bonds"] for chain in chains)
    broken = sum(chain["broken_bonds"] for chain in chains)
    if bonds and broken > _BROKEN * bonds:
        config = files.checkpoints[-1].config if files.checkpoints else {}
        if config.get("loss", {}).get("violation"):
            advice = (
                "The violation loss is on: more steps make them fewer, and `scalefold relax` "
                "repairs individual ones."
            )
        else:
            advice = "The violation loss addresses this; AlphaFold2 uses it in fine-tuning."
        yield (
            f"{100 * broken / bonds:.0f}% of the peptide bonds are broken in the last evaluation. "
            f"{advice}"
        )
