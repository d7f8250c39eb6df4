"""What a fine-tuning will take, and what it has brought."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from scalefold.config.identity import run_key
from scalefold.config.schema import Config
from scalefold.evaluate.follow import evaluation_path
from scalefold.progress import format_duration
from scalefold.weights.matching import model_shapes

_BYTES_A_PARAMETER: Final = 16
"""Of a checkpoint: weights, their average, two moments of Adam, float32 each."""
_H200_SECONDS_A_SAMPLE: Final = 0.965
_FINETUNING: Final = {"crop_size": 384, "max_msa_clusters": 508, "max_extra_msa": 5120}
"""Samples that were timed: docs/performance.md, recomputation selective."""


def needs(config: Config) -> dict[str, str]:
    """Say how long a training takes at most, and how much disk and memory, by subject.

    Parameters
    ----------
    config : Config
    """
    training, patience = config.training, config.evaluation.patience
    samples = training.steps * training.global_batch_size
    length = f"{training.steps:,} steps of {training.global_batch_size} samples"
    if patience is not None:
        length = f"at most {length}; it ends after {patience} evaluations without a gain"
    num_parameters = sum(shape.numel() for shape in model_shapes(config.model).values())
    num_checkpoints = len(training.published_steps())
    size = num_parameters * _BYTES_A_PARAMETER * num_checkpoints / 1e9
    free = shutil.disk_usage(_existing(config.results)).free / 1e9
    disk = f"{num_checkpoints} checkpoints, {size:.2g} GB in all; {free:,.0f} GB are free"
    if size > free:
        disk += ": too few. Raise training.checkpoint_every, or free some"
    return {"training": length, "time": _time(config, samples), "disk": disk}


def _time(config: Config, samples: int) -> str:
    sizes = config.features.model_dump(include=set(_FINETUNING))
    if sizes != _FINETUNING or config.model.evoformer.num_blocks != 48:
        return "not measured for this model; once training has begun, its line says what is left"
    total = format_duration(samples * _H200_SECONDS_A_SAMPLE)
    return (
        f"at most {total} on one H200, {_H200_SECONDS_A_SAMPLE} s a sample, in 62 GB of its "
        "memory; a smaller GPU computes more of it again"
    )


def _existing(folder: Path) -> Path:
    return next(p for p in (folder, *folder.absolute().parents) if p.exists())


def outcome(config: Config) -> list[str]:
    """Say what the first of the evaluated splits' mean lDDT-Ca was before, at best and at the end.

    Parameters
    ----------
    config : Config
        Of a run whose evaluations are there.
    """
    run, key, split = config.results / config.run_name, run_key(config), config.evaluation.splits[0]
    scores: dict[int, float] = {}
    chains: dict[int, int] = {}
    for path in sorted((run / "evaluation" / key).glob("step-*.json")):
        evaluation: dict[str, Any] = json.loads(path.read_text("utf-8"))
        value = evaluation["mean"].get(split, {}).get("lddt_ca")
        if value is not None:
            scores[evaluation["step"]] = value
            chains[evaluation["step"]] = evaluation["counts"][split]["scored"]
    if not scores:
        return []  # the workflow was not asked for them
    best, last = max(scores, key=scores.__getitem__), max(scores)
    lines = [
        f"mean lDDT-Cα of {chains[last]} {split} chains: {scores[min(scores)]:.3f} with the given "
        f"weights, {scores[best]:.3f} at best (step {best}), {scores[last]:.3f} at the end (step "
        f"{last})"
    ]
    if best == min(scores):
        lines.append(
            "no step is better than the given weights: keep these, or see docs/fine-tune.md for "
            "what to change"
        )
    else:
        checkpoint = run / "weights" / key / evaluation_path(Path(), best).stem
        lines.append(f"best weights: {checkpoint}")
        lines.append(f"for other codes: scalefold weights export {checkpoint} --out finetuned.pt")
    lines.append(f"report: {run / 'report.html'}")
    return lines
