"""Warnings before training runs again: which checkpoints are made again, or will be missing."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from scalefold.checkpoint.published import other_initial_weights, passed_steps, steps_made_from
from scalefold.config.initial_weights import initial_weights_sha256
from scalefold.config.schema import Config
from scalefold.errors import first_few
from scalefold.shards.manifest import data_hash
from scalefold.shards.packed_settings import packing_differences


def restart_warnings(
    training: Path, config: Config, published: Sequence[int], evaluated: Collection[int]
) -> list[str]:
    """Warn of training that is to start over, or lacks checkpoints that are wanted.

    Parameters
    ----------
    training : Path
        Its folder.
    published : sequence of int
        Steps of its checkpoints, see `steps_made_from`.
    evaluated : collection of int
        Steps whose checkpoints are not needed any more.

    Returns
    -------
    list of str
        Warnings, mostly none.
    """
    warnings = []
    now = initial_weights_sha256(config)
    # If a checkpoint cannot be read, the training says so.
    with contextlib.suppress(OSError, ValueError, KeyError):
        before = other_initial_weights(training, now)
        if before is not None:
            warnings.append(
                f"{config.training.initial_weights}: other initial weights than those that "
                f"{training} was trained from (sha256 {before[:12]} then, {(now or '')[:12]} now). "
                "Training starts over; the earlier training run is moved to replaced/ in its folder"
            )
    passed = passed_steps(published, config.training)
    missed = [step for step in passed if step not in evaluated]
    if config.training.steps in passed:
        choice = [step for step in published if step > 0]
        warnings.append(
            f"training.steps is {config.training.steps}, but {training} has made {published[-1]} "
            f"and has no checkpoint of step {config.training.steps}. Training starts over; the "
            "earlier training run is moved to replaced/ in its folder. To keep it, set "
            f"training.steps to one of {first_few(choice, 8)}, or to more"
        )
    elif missed:
        warnings.append(
            f"{training} has passed step {published[-1]} and has no checkpoint of "
            f"{first_few(missed, 8)}, wanted now (training.checkpoint_every was another, or they "
            "were deleted). It is kept, and goes on if steps are left; those steps are not "
            "evaluated. For all of them, delete the folder: training then starts over"
        )
    return warnings


def new_data_warnings(training: Path, shards: Path, config: Config) -> list[str]:
    """Warn of training that is to start over with other data: of its shards, or once repacked."""
    checkpoints = sorted(training.glob("step-*.ready"))
    if not checkpoints or config.training.accept_new_data:
        return []
    last, why = int(checkpoints[-1].stem.removeprefix("step-")), ""
    # Shards or checkpoints that cannot be read are refused where they are used.
    with contextlib.suppress(OSError, ValueError, KeyError):
        if found := packing_differences(shards, config):
            why = f"{shards} was packed with {'; '.join(found)}. It is packed again"
        elif last not in steps_made_from(training, data_hash(shards), None):
            why = f"{shards} has other data than {training} was trained on"
    fate = (
        "and training starts over; the earlier training is moved to replaced/ in its folder. To "
        "continue it with the new data, set training.accept_new_data: true"
    )
    return [f"{why}, {fate}"] if why else []
