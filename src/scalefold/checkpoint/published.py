"""Which checkpoints in a training run's folder are of the present data and initial weights.

The workflow asks before it does anything, so nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from scalefold.config.schema import TrainingConfig
from scalefold.errors import InputError


def steps_made_from(
    folder: Path, data_manifest_sha256: str, initial_weights_sha256: str | None
) -> list[int]:
    """Steps of the complete checkpoints that a training run from these files would not set aside.

    Those of earlier data count, if the training went on from them with the present data.

    Parameters
    ----------
    folder : Path
        Of the training; see `scalefold.checkpoint.read`.
    initial_weights_sha256 : str or None
        None for random weights, and where there is no such file now. Then all checkpoints count,
        and so do those that did not record it.

    Returns
    -------
    list of int
        Ascending.

    Raises
    ------
    OSError
        If a checkpoint is deleted meanwhile.
    InputError
        If a checkpoint's description is damaged.
    """
    made_from = {
        mark: _made_from(mark, mark.stat().st_mtime_ns) for mark in folder.glob("step-*.ready")
    }
    accepted = {data_manifest_sha256}
    for made in made_from.values():
        if made.data == data_manifest_sha256:
            accepted |= made.former_data
    steps = []
    for mark, made in made_from.items():
        same_start = None in (made.start, initial_weights_sha256) or (
            made.start == initial_weights_sha256
        )
        if made.data in accepted and same_start:
            steps.append(int(mark.stem.removeprefix("step-")))
    return sorted(steps)


def passed_steps(found: Sequence[int], training: TrainingConfig) -> list[int]:
    """Steps that a training run has passed without the checkpoint that the configuration asks for.

    It happens where ``training.checkpoint_every`` was different, or a checkpoint was deleted.

    Parameters
    ----------
    found : sequence of int
        Steps of the checkpoints that it has.

    Returns
    -------
    list of int
        Ascending. With ``training.steps`` among them, training went too far to be continued.
    """
    last = max(found, default=0)
    return [step for step in training.published_steps() if step < last and step not in found]


def other_initial_weights(folder: Path, initial_weights_sha256: str | None) -> str | None:
    """Hash of the initial weights that training started from, if they are not the present ones.

    Returns
    -------
    str or None
        None also without a complete checkpoint, and for one that did not record it.

    Raises
    ------
    OSError, InputError
        If the last checkpoint cannot be read.
    """
    for mark in sorted(folder.glob("step-*.ready"))[-1:]:
        start = _made_from(mark, mark.stat().st_mtime_ns).start
        if None not in (start, initial_weights_sha256) and start != initial_weights_sha256:
            return start
    return None


class _MadeFrom(NamedTuple):
    """Hashes of a checkpoint's data, initial weights, and earlier data of its run."""

    data: str
    start: str | None
    former_data: frozenset[str]


@cache
def _made_from(mark: Path, time_ns: int) -> _MadeFrom:
    path = mark.with_suffix("") / "checkpoint.json"
    try:
        facts = json.loads(path.read_text("utf-8"))
        former = frozenset(data["data_manifest_sha256"] for data in facts.get("former_data", ()))
        start = facts.get("initial_weights_sha256")
        return _MadeFrom(facts["data_manifest_sha256"], start, former)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error!r}). Use another checkpoint") from None
