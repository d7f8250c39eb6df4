"""One run: its state and the order of its events.

All ranks go through the same steps and take every decision from the same numbers, so none waits for
a rank that has left. The first rank also reads the checkpoint to start from, and writes; the others
meanwhile go on until they need it for an exchange.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from scalefold.checkpoint.read import checkpoint_path, load_training, load_weights
from scalefold.checkpoint.target import EndWatch, Stalled, TargetReached
from scalefold.config.schema import Config
from scalefold.engine.garbage_collection import present_objects_spared
from scalefold.errors import ElsewhereError, InputError
from scalefold.loader.loader import Batch
from scalefold.loader.order import Position
from scalefold.loader.prepare import SampleError
from scalefold.loader.shared_batches import Batches
from scalefold.loader.waiting import StoppedWaitingError
from scalefold.ops.backends import log_backends
from scalefold.optim.schedule import learning_rate
from scalefold.parallel import Mesh
from scalefold.parallel.agreement import on_first
from scalefold.parallel.ranks import broadcast_tensors
from scalefold.train.assemble import Trainer
from scalefold.train.metrics import Record
from scalefold.train.run_files import RunFiles
from scalefold.train.skipped_steps import SkippedSteps
from scalefold.train.step_numbers import DeviceTime, HostNumbers, Notice, Readback

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
        Whether the run's last step was made or an evaluation ended it; False after a stop request.
    skipped_steps : int
        Steps that were not applied because they were not finite.
    end : TargetReached, Stalled or None
        What an evaluation ended the run with; known to the first rank.
    """

    step: int
    checkpoint: Path
    completed: bool
    skipped_steps: int
    end: TargetReached | Stalled | None = None


class Run:
    """A run from a checkpoint, or from the start, to its end."""

    def __init__(self, config: Config, trainer: Trainer, mesh: Mesh, out: Path) -> None:
        self.step = 0
        self.position = Position(0)
        """Where all ranks' loaders start."""
        self._config, self._trainer, self._mesh, self._out = config, trainer, mesh, out
        self._skips = SkippedSteps(config.training.max_non_finite_steps)
        self._failure: InputError | SampleError | None = None
        self._samples_failed = False  # a step's numbers say that some rank could not read samples
        self._stop_requested = False  # a step's numbers say that some rank was asked to stop
        self._ended_by_evaluation = False
        self._stopped_waiting = False  # this rank's samples did not come after a stop request
        self._first_read_done = False  # every rank has made its first step since the start
        # Numbers of a step are read when the next one is under way, so that a GPU never waits.
        self._unread: deque[_Unread] = deque()
        self._last_read = DeviceTime(trainer.parameters.master.device)
        self._lag = 1 if trainer.parameters.master.is_cuda else 0

    def begin(self, checkpoint: Path | None) -> None:
        """Start from a checkpoint of this run, or at step 0; the first rank has it, all get it."""
        world = self._mesh.world
        self._trainer.state.join()
        self.position, self._skips.skipped, self._skips.in_a_row = on_first(
            world, lambda: self._restore(checkpoint) if checkpoint else (Position(0), 0, 0)
        )
        self.step = self.position.step
        broadcast_tensors(world, list(self._trainer.state.tensors().values()))
        self._trainer.state.divide()
        self._trainer.parameters.publish()

    def _restore(self, checkpoint: Path) -> tuple[Position, int, int]:
        state = load_training(checkpoint)
        self._trainer.state.restore(
            load_weights(checkpoint, "weights"),
            load_weights(checkpoint, "averaged"),
            state["optimiser"],
            str(checkpoint),
        )
        # checkpoints of earlier versions were in order, and have no more than the step
        position = Position.of_state(state.get("data", Position(state["step"]).state()))
        return position, state["skipped"], state["skipped_in_a_row"]

    def go(
        self,
        loader: Batches,
        files: RunFiles | None,
        watch: EndWatch,
        stop: threading.Event,
    ) -> TrainingResult:
        """Make all steps; publish checkpoints at the start, now and then, and at the end."""
        training, world = self._config.training, self._mesh.world
        self._publish(files, loader)  # step 0: the untrained model, for comparison
        self._ended_by_evaluation = on_first(world, watch.look)
        self._last_read = DeviceTime(self._trainer.parameters.master.device)
        first = self.step + 1  # compiles and captures
        with contextlib.ExitStack() as stack:
            while self.step < training.steps and not self._ends(watch, stop):
                self._step(loader, watch, stop)
                self._read(self._lag, files)
                if self.step == first:
                    log_backends()
                if self.step == first and self._trainer.parameters.master.is_cuda:
                    stack.enter_context(present_objects_spared())
                if self.step % training.checkpoint_every == 0:
                    self._read(0, files)
                    if not (self._samples_failed or self._stop_requested):  # alike on all ranks
                        self._publish(files, loader)
        self._read(0, files)
        # all wait while the checkpoint is written
        self._mesh.set_timeout(training.start_timeout_seconds)
        published = self._publish(files, loader)
        if files is not None:
            files.finish()
        completed = (
            self.step >= training.steps or self._ended_by_evaluation or watch.end is not None
        )
        if self.step < training.steps:
            logger.info("stopped at step %d of %d: %s", self.step, training.steps, published)
        world.barrier()  # nobody leaves while the last checkpoint is being written
        if self._failure is not None:
            raise self._failure
        if self._samples_failed:
            raise ElsewhereError("another rank could not read its samples, see its message")
        return TrainingResult(self.step, published, completed, self._skips.skipped, watch.end)

    def _ends(self, watch: EndWatch, stop: threading.Event) -> bool:
        """Whether all ranks know that no further step is to be made."""
        alone = self._mesh.world.size == 1  # needs no agreement
        return (
            self._samples_failed
            or self._stop_requested
            or self._ended_by_evaluation
            or (alone and (stop.is_set() or watch.look()))
        )

    def _step(self, loader: Batches, watch: EndWatch, stop: threading.Event) -> None:
        """Launch a step's work; nothing waits for it, and its numbers are read later.

        The batch is released: the next step needs its memory.
        """
        batch = self._next(loader)
        self.step += 1
        rate = learning_rate(self.step, self._config.optimiser)

        def notice(waited: float = batch.wait_seconds if batch else 0.0) -> Notice:
            return Notice(stop.is_set(), self._mesh.first and watch.look(), waited)

        if batch is None:
            numbers = self._trainer.step.abstain(notice)
        else:
            numbers = self._trainer.step(batch.samples, rate, notice)
        self._unread.append(_Unread.of(self.step, rate, batch, Readback(numbers)))

    def _next(self, loader: Batches) -> Batch | None:
        """Samples of the next step, of this rank; None once there is something wrong with one,
        or they did not come before the end.

        The other ranks learn of that from the step, so that all end with the steps made so far.
        """
        if self._failure is None and not self._stopped_waiting:
            try:
                batch = next(loader)
            except (InputError, SampleError) as error:
                self._failure = error
            except StoppedWaitingError as error:
                logger.warning("%s: asked to stop, and its samples did not come", error)
                self._stopped_waiting = True
            else:
                assert batch.step == self.step, (batch.step, self.step)
                return batch
        return None

    def _read(self, leave: int, files: RunFiles | None) -> None:
        """Read the numbers of all steps but the last ``leave``."""
        while len(self._unread) > leave:
            unread = self._unread.popleft()
            numbers = unread.readback.get(self._mesh.world)
            seconds = unread.readback.ended.seconds_since(self._last_read)
            self._last_read = unread.readback.ended
            if not self._first_read_done:  # from now on no rank compiles
                self._first_read_done = True
                self._mesh.set_timeout(self._config.training.exchange_timeout_seconds)
            if numbers.absent:  # nor is any later step applied
                if numbers.stop and self._failure is None:
                    self._stop_requested = True
                else:
                    self._samples_failed = True
                self.step = min(self.step, unread.step - 1)
                continue
            self._stop_requested |= numbers.stop
            self._ended_by_evaluation |= numbers.ended_by_evaluation
            self._skips.check(unread.step, numbers, unread.chain_keys)
            if files is not None:
                files.record(self._record(unread, numbers, seconds))

    def _record(self, unread: _Unread, numbers: HostNumbers, seconds: float) -> Record:
        size = self._config.training.global_batch_size
        return {
            "step": unread.step,
            "samples": unread.step * size,
            **numbers.means,
            "grad_norm": numbers.gradient_norm,
            "learning_rate": unread.learning_rate,
            "recycling": unread.recycling,
            "skipped_steps": self._skips.skipped,
            "step_seconds": seconds,
            "samples_per_second": size / seconds,
            "loader_wait_seconds": numbers.wait_seconds,
            "lateness_steps": unread.lateness,
            "time": time.time(),
        }

    def _publish(self, files: RunFiles | None, loader: Batches) -> Path:
        """Have a checkpoint of this step written, and say where it is."""
        positions = self._mesh.data.all_gather_object(loader.position(self.step))
        lacking = on_first(self._mesh.world, lambda: files is not None and files.lacks(self.step))
        if lacking and files is not None:
            files.publish(self.step, self._skips, Position.union(positions))
        elif lacking:
            deque(self._trainer.state.whole(), maxlen=0)  # its part of what the first rank writes
        return checkpoint_path(self._out, self.step)


@dataclass(frozen=True, eq=False)
class _Unread:
    step: int
    learning_rate: float
    chain_keys: list[str]
    recycling: int
    lateness: int
    readback: Readback

    @staticmethod
    def of(step: int, rate: float, batch: Batch | None, readback: Readback) -> _Unread:
        if batch is None:
            return _Unread(step, rate, [], 0, 0, readback)
        latest = max(batch.lateness)
        return _Unread(step, rate, batch.chain_keys, batch.recycling, latest, readback)
