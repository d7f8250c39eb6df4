"""Evaluate the checkpoints of a training run while it goes on.

One process evaluates each checkpoint as soon as it is published. It shares nothing with
training but the folder: training never waits for it, and may run on another machine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from rich.console import Console

from scalefold.checkpoint.early_stopping import read_end
from scalefold.checkpoint.lock import FAILED_MARK, sign_of_life
from scalefold.checkpoint.published import steps_made_from
from scalefold.checkpoint.read import checkpoint_path, ready_mark
from scalefold.config import initial_weights_sha256
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.evaluate.run import evaluate_weights
from scalefold.evaluate.up_to_date import is_evaluated
from scalefold.shards.manifest import data_hash

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 120.0
"""A training run without a sign of life for so long has failed. A retry begins sooner."""
_SECONDS_TO_RETRY: Final = 5.0
"""The workflow starts a training run that has failed on this machine again within this time."""
_SECONDS_BETWEEN_LOOKS: Final = 1.0


def evaluation_path(folder: Path, step: int) -> Path:
    """The file of a step's evaluation."""
    return checkpoint_path(folder, step).with_suffix(".json")


def follow(
    config: Config,
    training: Path,
    shards: Path,
    out: Path,
    device: torch.device | str = "cpu",
    console: Console | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
    turn: tuple[int, int] = (0, 1),
    left: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Evaluate each checkpoint without an up-to-date evaluation, until training ends.

    Training has ended when it has reached its last step or its target; when the last
    ``evaluation.patience`` evaluations have gained nothing; when the workflow has marked it as
    failed and does not start it again; or when nothing has been written under its lock for
    ``patience_seconds``. All checkpoints published until then are evaluated. A checkpoint that
    cannot be evaluated is logged and left out.

    Parameters
    ----------
    training : Path
        The training's folder; need not exist yet.
    shards : Path
        What ``scalefold pack`` wrote. Checkpoints of other shards are left out.
    out : Path
        Folder that gets ``step-<8 digits>.json`` and ``.tsv``.
    turn : tuple of int
        Number of this process, from 0, and number of all processes that follow: they take turns.
    left : callable
        Whether the training is known to make no further checkpoint.

    Returns
    -------
    list of int
        Steps that were evaluated.

    Raises
    ------
    InputError
        Bad shards; or one of the training's files cannot be read.
    """
    checkpoints = _Checkpoints(config, training, shards, out, turn)
    logger.info("waiting for checkpoints in %s, and evaluating them", training)
    evaluated: list[int] = []
    failed: set[int] = set()
    sign, seen = ("", False), time.monotonic()
    while True:
        now = sign_of_life(training), (training / FAILED_MARK).exists()
        if now != sign:
            sign, seen = now, time.monotonic()
        _, has_failed = now
        patience = min(_SECONDS_TO_RETRY, patience_seconds) if has_failed else patience_seconds
        # Asked before the checkpoints are listed, so that the last one is among them.
        ended = left() or checkpoints.training_ended()
        todo = [step for step in checkpoints.waiting() if step not in failed]
        if todo:
            path = evaluation_path(out, todo[0])
            try:
                evaluate_weights(
                    config,
                    checkpoint_path(training, todo[0]),
                    shards,
                    path,
                    device=device,
                    console=console,
                )
                evaluated.append(todo[0])
            except InputError as error:
                failed.add(todo[0])
                logger.warning("step %d is not evaluated: %s", todo[0], error)
        elif ended:
            return evaluated
        elif time.monotonic() - seen > patience:
            logger.info("%s: no training has run for %g s", training, patience)
            return evaluated
        else:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


class _Checkpoints:
    """The checkpoints that a training run has published, and those that are evaluated."""

    def __init__(
        self, config: Config, training: Path, shards: Path, out: Path, turn: tuple[int, int]
    ) -> None:
        self._config, self._training, self._out = config, training, out
        self._data, self._start = data_hash(shards), initial_weights_sha256(config)
        number, followers = turn
        self._pending = set(sorted(config.training.published_steps())[number::followers])

    def waiting(self) -> list[int]:
        """Steps that are still to be evaluated, ascending."""
        steps = [step for step in self._published() if step in self._pending]
        self._pending -= {step for step in steps if self._is_evaluated(step)}
        return [step for step in steps if step in self._pending]

    def _is_evaluated(self, step: int) -> bool:
        mark = ready_mark(checkpoint_path(self._training, step))
        return is_evaluated(evaluation_path(self._out, step), mark, self._config.evaluation)

    def training_ended(self) -> bool:
        """Whether the last step is made, or an evaluation has ended it."""
        if max(self._published(), default=-1) >= self._config.training.steps:
            return True
        return read_end(self._training, self._config.evaluation, self._data) is not None

    def _published(self) -> list[int]:
        """Steps of the checkpoints; none if one is being deleted or replaced."""
        try:
            return steps_made_from(self._training, self._data, self._start)
        except FileNotFoundError:
            return []
