"""The training loop."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import scalefold
from scalefold.config.load import config_hash
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.loader.loader import Batch, TrainingLoader
from scalefold.loader.prepare import SampleError
from scalefold.shards.reader import ShardReader
from scalefold.train import checkpoint as checkpoints
from scalefold.train.assemble import Trainer, assemble
from scalefold.train.health import Health
from scalefold.train.lock import writer_lock
from scalefold.train.metrics import MetricsLog, Record
from scalefold.train.progress import ProgressLine
from scalefold.train.provenance import data_hash, source_commit
from scalefold.train.readback import Readback
from scalefold.train.resume import check_resumable
from scalefold.train.schedule import learning_rate
from scalefold.train.target import TargetReached, TargetWatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingResult:
    """How a call of `train` ended.

    Attributes
    ----------
    step : int
        Steps made in all.
    checkpoint : Path
        The last checkpoint.
    completed : bool
        Whether the run's last step was made or its target reached; False after a stop request.
    skipped_steps : int
        Steps that were not applied because they were not finite.
    target : TargetReached or None
        The evaluation that ended the run.
    """

    step: int
    checkpoint: Path
    completed: bool
    skipped_steps: int
    target: TargetReached | None = None


def train(
    config: Config,
    shards: Path,
    out: Path,
    *,
    resume: bool,
    device: torch.device,
    stop: threading.Event,
    console: Console | None = None,
) -> TrainingResult:
    """Train from random weights, from ``training.initial_weights``, or on from the last checkpoint.

    Parameters
    ----------
    config : Config
    shards : Path
        What ``scalefold pack`` wrote.
    out : Path
        The training's folder: gets ``step-<number>/`` (checkpoints), ``metrics.jsonl``,
        ``tensorboard/``. One training a folder; `scalefold.config.run_key` is a name for it.
    resume : bool
        Continue from the last complete checkpoint of ``out``, bit-exactly on a CPU; from the start
        if there is none.
    device : torch.device
    stop : Event
        When set, the step at hand is finished, a checkpoint written, and the call returns.
    console : Console, optional
        For the progress line; default standard error.

    Raises
    ------
    InputError
        Bad shards, another writer at work, a checkpoint of another run, a full disk.
    DivergedError
        If more than ``training.max_non_finite_steps`` steps in a row were not finite.
    """
    reader = ShardReader(shards)
    with writer_lock(out):
        checkpoints.remove_leftovers(out)
        start = _starting_point(out, resume)
        manifest_hash = data_hash(shards)
        if start is not None:
            check_resumable(start, checkpoints.read_metadata(start), config, manifest_hash)
        trainer = assemble(config, device)
        run = _Run(config, trainer, out, manifest_hash)
        if start is not None:
            run.restore(start)
        metrics = MetricsLog(out, run.step)
        console = console or Console(stderr=True)
        try:
            with (
                TrainingLoader(reader, config, device, run.step) as loader,
                ProgressLine(run.step, config.training.steps, console) as progress,
            ):
                return run.go(loader, metrics, progress, stop)
        finally:
            metrics.close()


def _starting_point(folder: Path, resume: bool) -> Path | None:
    last = checkpoints.latest(folder)
    if last is None:
        if resume:
            logger.info("%s: no complete checkpoint to continue from, starting at step 0", folder)
        return None
    if not resume:
        raise InputError(
            f"{folder}: holds checkpoints of a run already, the last is {last.name}. Continue it "
            "with --resume, or choose another folder (or delete this one)"
        )
    logger.info("continuing from %s", last)
    return last


class _Run:
    """The state of a run and the order of its events."""

    def __init__(self, config: Config, trainer: Trainer, folder: Path, manifest_hash: str) -> None:
        self.step = 0
        self._config, self._trainer, self._folder = config, trainer, folder
        self._health = Health(config.training.max_non_finite_steps)
        self._target = TargetWatch(folder, config.evaluation, manifest_hash)
        self._description: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "config_hash": config_hash(config),
            "data_manifest_sha256": manifest_hash,
            "scalefold_version": scalefold.__version__,
            "commit": source_commit(),
        }
        # Numbers of a step are read when the next one is under way, so that a GPU never waits.
        self._unread: deque[_Unread] = deque()
        self._lag = 1 if trainer.parameters.master.is_cuda else 0

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint of this run."""
        state = checkpoints.load_training(checkpoint)
        self._trainer.restore(
            checkpoints.load_weights(checkpoint, "weights"),
            checkpoints.load_weights(checkpoint, "averaged"),
            state["optimiser"],
            str(checkpoint),
        )
        self.step = state["step"]
        self._health.skipped, self._health.in_a_row = state["skipped"], state["skipped_in_a_row"]

    def go(
        self,
        loader: TrainingLoader,
        metrics: MetricsLog,
        progress: ProgressLine,
        stop: threading.Event,
    ) -> TrainingResult:
        """Make all steps; publish checkpoints at the start, now and then, and at the end."""
        training = self._config.training
        self._publish(metrics)  # step 0: the untrained model, for comparison
        started = time.perf_counter()
        while self.step < training.steps and not stop.is_set() and not self._target.look():
            try:
                batch = next(loader)
            except (InputError, SampleError):
                # The steps made are sound, whatever is wrong with the sample of the next.
                self._read(0, started, metrics, progress)
                logger.info("stopped before step %d: %s", self.step + 1, self._publish(metrics))
                raise
            assert batch.step == self.step, (batch.step, self.step)
            self.step += 1
            rate = learning_rate(self.step, self._config.optimiser)
            numbers = self._trainer.step(batch.passes, rate)
            self._unread.append(_Unread.of(self.step, rate, batch, Readback(numbers)))
            del batch  # its features take memory that the next step needs
            started = self._read(self._lag, started, metrics, progress)
            if self.step % training.checkpoint_every == 0:
                started = self._read(0, started, metrics, progress)
                self._publish(metrics)
        self._read(0, started, metrics, progress)
        published = self._publish(metrics)
        target = self._target.reached
        if self.step < training.steps:
            logger.info("stopped at step %d of %d: %s", self.step, training.steps, published)
        completed = self.step >= training.steps or target is not None
        return TrainingResult(self.step, published, completed, self._health.skipped, target)

    def _read(
        self, leave: int, started: float, metrics: MetricsLog, progress: ProgressLine
    ) -> float:
        """Read the numbers of all steps but the last ``leave``; returns when it was done."""
        while len(self._unread) > leave:
            unread = self._unread.popleft()
            numbers = unread.readback.get()
            now = time.perf_counter()
            seconds, started = now - started, now
            self._health.check(unread.step, numbers, unread.chain_keys)
            names = [name for name in numbers.per_sample[0] if name != "grad_norm"]
            size = self._config.training.global_batch_size
            record: Record = {
                "step": unread.step,
                "samples": unread.step * size,
                **{name: numbers.mean(name) for name in names},
                "grad_norm": numbers.gradient_norm,
                "learning_rate": unread.learning_rate,
                "recycling": unread.recycling,
                "skipped_steps": self._health.skipped,
                "step_seconds": seconds,
                "samples_per_second": size / seconds,
                "loader_wait_seconds": unread.wait_seconds,
                "time": time.time(),
            }
            every = self._config.training.log_every
            if unread.step % every == 0 or unread.step in (1, self._config.training.steps):
                metrics.write(record)
            progress.update(record)
        return started

    def _publish(self, metrics: MetricsLog) -> Path:
        """Write a checkpoint of this step, its log first, unless there is one."""
        path = checkpoints.checkpoint_path(self._folder, self.step)
        if checkpoints.ready_mark(path).exists():
            return path
        metrics.sync()
        trainer = self._trainer
        path = checkpoints.save(
            self._folder,
            step=self.step,
            weights=trainer.weights(),
            averaged=trainer.averaged(),
            training={
                "step": self.step,
                "skipped": self._health.skipped,
                "skipped_in_a_row": self._health.in_a_row,
                "optimiser": trainer.optimiser_state(),
            },
            description=self._description,
        )
        checkpoints.prune(self._folder, self._config.training.keep_checkpoints)
        return path


@dataclass(frozen=True, eq=False)
class _Unread:
    step: int
    learning_rate: float
    chain_keys: list[str]
    recycling: int
    wait_seconds: float
    readback: Readback

    @staticmethod
    def of(step: int, rate: float, batch: Batch, readback: Readback) -> _Unread:
        return _Unread(step, rate, batch.chain_keys, batch.recycling, batch.wait_seconds, readback)
