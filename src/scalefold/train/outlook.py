"""Warnings before a training runs again: which checkpoints are made anew, or will be missing."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from scalefold.checkpoint.published import other_initial_weights, passed_steps
from scalefold.config.initial_weights import initial_weights_sha256
from scalefold.config.schema import Config


def outlook(
    training: Path, config: Config, published: Sequence[int], evaluated: Collection[int]
) -> list[str]:
    """Warn of a training that is to start anew, or that lacks checkpoints that are wanted.

    Parameters
    ----------
    training : Path
        Its folder.
    config : Config
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
                "It is trained anew; the earlier training is moved to replaced/ in its folder"
            )
    passed = passed_steps(published, config.training)
    missed = [step for step in passed if step not in evaluated]
    if config.training.steps in passed:
        choice = [step for step in published if step > 0]
        warnings.append(
            f"training.steps is {config.training.steps}, but {training} has made {published[-1]} "
            f"and has no checkpoint of step {config.training.steps}. It is trained anew; the "
            "earlier training is moved to replaced/ in its folder. To keep it, set training.steps "
            f"to one of {_enumeration(choice)}, or to more"
        )
    elif missed:
        warnings.append(
            f"{training} has passed step {published[-1]} and has no checkpoint of "
            f"{_enumeration(missed)}, wanted now (training.checkpoint_every was another, or they "
            "were deleted). It is kept, and goes on if steps are left; those steps are not "
            "evaluated. For all of them, delete the folder: that trains anew"
        )
    return warnings


def _enumeration(steps: Sequence[int], most: int = 8) -> str:
    """Steps in words, not more than a few."""
    more = f" and {len(steps) - most} more" if len(steps) > most else ""
    return ", ".join(map(str, steps[:most])) + more
