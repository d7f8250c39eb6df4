"""The files that the first rank writes: metrics, checkpoints, progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import scalefold
from scalefold.checkpoint.background import Background
from scalefold.checkpoint.provenance import InputHashes, source_commit
from scalefold.checkpoint.read import FormerData, checkpoint_path, ready_mark
from scalefold.checkpoint.snapshot import StateSnapshot
from scalefold.checkpoint.write import prune, save
from scalefold.config.identity import config_hash
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.loader.order import Position
from scalefold.train.assemble import TrainingParts
from scalefold.train.metrics import MetricsLog, Record
from scalefold.train.progress_line import ProgressLine
from scalefold.train.skipped_steps import SkippedSteps

logger = logging.getLogger(__name__)


class TrainingFiles:
    """Writes into a training run's folder, whose lock this process holds.

    Checkpoints are written while the training goes on. If one cannot be written, a later call
    raises the error. As a context it waits at its end for the last one.

    Parameters
    ----------
    former_data : sequence of FormerData
        See `scalefold.checkpoint.read.Metadata`.
    confirm : callable
        Makes sure of the lock before each checkpoint.
    """

    def __init__(
        self,
        config: Config,
        parts: TrainingParts,
        out: Path,
        step: int,
        inputs: InputHashes,
        former_data: Sequence[FormerData],
        confirm: Callable[[], None],
        console: Console,
    ) -> None:
        self._training, self._out, self._confirm = config.training, out, confirm
        self._snapshot = StateSnapshot(parts.state, parts.step.hold_update)
        self._metrics = MetricsLog(out, step)
        self._progress = ProgressLine(step, config.training.steps, console)
        self._writing = Background("checkpoint")
        self._description: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "config_hash": config_hash(config),
            **asdict(inputs),
            "former_data": [asdict(data) for data in former_data],
            "scalefold_version": scalefold.__version__,
            "commit": source_commit(),
        }

    def __enter__(self) -> TrainingFiles:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)
        try:
            self._writing.close()
        except (InputError, OSError, RuntimeError) as problem:
            # Not raised: whatever has ended the training is of more interest.
            logger.error("%s", problem)
        self._metrics.close()

    def record(self, record: Record) -> None:
        """Log a step's numbers if it is to be logged, and show them."""
        self._writing.check()
        step = record["step"]
        if step % self._training.log_every == 0 or step in (1, self._training.steps):
            self._metrics.write(record)
        self._progress.update(record)

    def lacks(self, step: int) -> bool:
        """Whether a step has no checkpoint; waits until the one before is written."""
        self._writing.finish()  # perhaps of this very step; and its snapshot is in use until then
        return not ready_mark(checkpoint_path(self._out, step)).exists()

    def publish(self, step: int, skipped: SkippedSteps, position: Position) -> None:
        """Have the checkpoint that a step `lacks` written, its log first."""
        self._snapshot.take()
        progress = {
            "step": step,
            "skipped": skipped.skipped,
            "skipped_in_a_row": skipped.in_a_row,
            "data": position.state(),
        }
        self._writing.start(partial(self._write, step, progress))

    def finish(self) -> None:
        """Wait until the last checkpoint is written."""
        self._writing.finish()

    def _write(self, step: int, progress: dict[str, Any]) -> None:
        self._metrics.sync()
        self._snapshot.wait()
        save(
            self._out,
            step=step,
            weights=self._snapshot.weights,
            averaged=self._snapshot.averaged,
            training={**progress, "optimiser": self._snapshot.optimiser},
            description=self._description,
            confirm=self._confirm,
        )
        prune(self._out, self._training.keep_checkpoints, self._training.publishes)
