"""Warnings before training runs again: which checkpoints are made again, or will be missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from scalefold.checkpoint.published import other_initial_weights, passed_steps, steps_made_from
from scalefold.config.initial_weights import initial_weights_sha256
from scalefold.config.schema import Config
from scalefold.errors import first_few
from scalefold.shards.manifest import data_hash
from scalefold.shards.packed_settings import packing_differences


def restart_warnings(
    training: Path, shards: Path, evaluations: Path, config: Config
) -> Iterator[str]:
    """Warn of training that is to start over, or that lacks checkpoints or data that are wanted."""
    published: list[int] = []
    # If a file cannot be read, the training says so.
    with contextlib.suppress(OSError, ValueError, KeyError):
        now = initial_weights_sha256(config)
        before = other_initial_weights(training, now)
        if before is not None:
            yield (
                f"{config.training.initial_weights}: other initial weights than those that "
                f"{training} was trained from (sha256 {before[:12]} then, {(now or '')[:12]} now). "
                "Training starts over; the earlier training run is moved to replaced/ in its folder"
            )
        yield from new_data_warnings(training, shards, config)
        published = steps_made_from(training, data_hash(shards), now)
    passed = passed_steps(published, config.training)
    missed = [step for step in passed if not (evaluations / f"step-{step:08d}.json").exists()]
    if config.training.steps in passed:
        choice = [step for step in published if step > 0]
        yield (
            f"training.steps is {config.training.steps}, but {training} has made {published[-1]} "
            f"and has no checkpoint of step {config.training.steps}. Training starts over; the "
            "earlier training run is moved to replaced/ in its folder. To keep it, set "
            f"training.steps to one of {first_few(choice, 8)}, or to more"
        )
    elif missed:
        yield (
            f"{training} has passed step {published[-1]} and has no checkpoint of "
            f"{first_few(missed, 8)}, wanted now (training.checkpoint_every was another, or they "
            "were deleted). It is kept, and goes on if steps are left; those steps are not "
            "evaluated. For all of them, delete the folder: training then starts over"
        )


def new_data_warnings(training: Path, shards: Path, config: Config) -> Iterator[str]:
    """Warn of other data than a training run has seen: of its shards, or once they are repacked."""
    checkpoints = sorted(training.glob("step-*.ready"))
    if not checkpoints:
        return
    last = int(checkpoints[-1].stem.removeprefix("step-"))
    if found := packing_differences(shards, config):
        why = f"{shards} was packed with {'; '.join(found)}. It is packed again"
    elif last not in steps_made_from(training, data_hash(shards), None):
        why = f"{shards} has other data than {training} was trained on"
    else:
        return
    more = f"training.steps to more than {last}, which it has made"
    if not config.training.accept_new_data:
        yield (
            f"{why}, and training starts over; the earlier training run is moved to replaced/ in "
            "its folder. To continue it with the new data, set training.accept_new_data: true"
            + (f", and {more}" if last >= config.training.steps else "")
        )
    elif last >= config.training.steps:
        yield f"{why}, but no step is left to train on the new data. Set {more}"
