"""The training loop: steps, from a starting point to the last one or to a reason to end.

All ranks make the same steps and take every decision from the same numbers, so none waits for a
rank that has left. The first rank also writes the log and the checkpoints.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scalefold.checkpoint.early_stopping import EndWatch, Stalled, TargetReached
from scalefold.checkpoint.read import checkpoint_path
from scalefold.config.schema import Config
from scalefold.engine.garbage_collection import present_objects_spared
from scalefold.errors import ElsewhereError, InputError
from scalefold.loader.loader import Batch
from scalefold.loader.order import Position
from scalefold.loader.prepare import SampleError
from scalefold.loader.shared_batches import SharedLoader
from scalefold.loader.waiting import StoppedWaitingError
from scalefold.ops.backends import log_backends
from scalefold.optim.schedule import learning_rate
from scalefold.parallel import Mesh
from scalefold.parallel.agreement import on_first
from scalefold.train.assemble import TrainingParts
from scalefold.train.metrics import Record
from scalefold.train.skipped_steps import SkippedSteps
from scalefold.train.step_exchange import Notice
from scalefold.train.step_numbers import DeviceTime, HostNumbers, Readback
from scalefold.train.training_files import TrainingFiles

logger = logging.getLogger(__name__)


class End(enum.IntEnum):
    """Why no further step is made. Where there are several reasons, the highest counts."""

    NOT_YET = 0
    STOP = 1
    """A signal asks a rank for the end."""
    EVALUATION = 2
    """An evaluation asks for it: the target is reached, or nothing is gained any more."""
    NO_SAMPLES = 3
    """A rank could not read its samples."""


@dataclass(frozen=True)
class TrainingResult:
    """How a call of `train` ended.

    Attributes
    ----------
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


@dataclass(frozen=True, eq=False)
class _LaunchedStep:
    """A step whose numbers are to be read; of one without samples only the first three count."""

    number: int
    learning_rate: float
    readback: Readback
    chain_keys: Sequence[str] = ()
    recycling: int = 0
    lateness: int = 0


class TrainingLoop:
    """Makes the steps of a training run, and has its log and its checkpoints written.

    Parameters
    ----------
    step : int
        Steps made before, by which ``parts`` is in its present state.
    skips : SkippedSteps
        Of these steps.
    loader : SharedLoader
        This rank's samples of the next steps.

    Attributes
    ----------
    step : int
        Steps launched, but for those that were not applied since a rank had no samples.
    """

    def __init__(
        self,
        config: Config,
        parts: TrainingParts,
        mesh: Mesh,
        step: int,
        skips: SkippedSteps,
        loader: SharedLoader,
        files: TrainingFiles | None,
        watch: EndWatch,
        stop: threading.Event,
        out: Path,
    ) -> None:
        self._config, self._parts, self._mesh, self._loader = config, parts, mesh, loader
        self._files, self._watch, self._stop, self._out = files, watch, stop, out
        self.step, self._first_step, self._skips = step, step + 1, skips
        self._end = End.NOT_YET
        # Of this rank; the others learn of it from the step, so that all end with the same one.
        self._samples_ended = False
        self._sample_error: InputError | SampleError | None = None
        # A step's numbers are read when the next one is under way, so that a GPU never waits.
        self._launched: deque[_LaunchedStep] = deque()
        self._lag = 1 if parts.parameters.master.is_cuda else 0
        self._last_ended = DeviceTime(parts.parameters.master.device)

    def run(self) -> TrainingResult:
        """Make all steps; publish checkpoints at the start, every so many, and at the end."""
        training, on_gpu = self._config.training, self._parts.parameters.master.is_cuda
        self._publish_checkpoint()  # step 0: the untrained model, for comparison
        if on_first(self._mesh.world, self._watch.look):
            self._end = End.EVALUATION
        self._last_ended = DeviceTime(self._parts.parameters.master.device)
        with contextlib.ExitStack() as stack:
            while self.step < training.steps and not self._ends():
                self._launch_step()
                self._read_numbers(leave=self._lag)
                if self.step == self._first_step:  # all is compiled and captured
                    log_backends()
                    if on_gpu:
                        stack.enter_context(present_objects_spared())
                if self.step % training.checkpoint_every == 0:
                    self._read_numbers()
                    if self._end is End.NOT_YET:
                        self._publish_checkpoint()
        self._read_numbers()
        return self._finish()

    def _ends(self) -> bool:
        """Whether all ranks know that no further step is to be made."""
        if self._mesh.world.size == 1:  # needs no agreement
            self._note_requests(self._notice())
        return self._end is not End.NOT_YET

    def _notice(self, wait_seconds: float = 0.0) -> Notice:
        """What the other ranks must know of this one."""
        by_evaluation = self._mesh.first and self._watch.look()
        return Notice(self._stop.is_set(), by_evaluation, wait_seconds)

    def _note_requests(self, notice: Notice) -> None:
        if notice.ended_by_evaluation:
            self._end = max(self._end, End.EVALUATION)
        elif notice.stop:
            self._end = max(self._end, End.STOP)

    def _launch_step(self) -> None:
        """Launch a step's work. Nothing waits for it, and the batch is released: the next step
        needs its memory.
        """
        batch = self._next_batch()
        self.step += 1
        rate = learning_rate(self.step, self._config.optimiser)
        make_step, notice = self._parts.step, self._notice
        if batch is None:
            launched = _LaunchedStep(self.step, rate, Readback(make_step.abstain(notice)))
        else:
            numbers = make_step(batch.samples, rate, partial(notice, batch.wait_seconds))
            launched = _LaunchedStep(
                self.step,
                rate,
                Readback(numbers),
                batch.chain_keys,
                batch.recycling,
                max(batch.lateness),
            )
        self._launched.append(launched)

    def _next_batch(self) -> Batch | None:
        """Return the samples of the next step; None from then on that they cannot be read, or did
        not come after a stop request.
        """
        if self._samples_ended:
            return None
        try:
            batch = next(self._loader)
        except (InputError, SampleError) as error:
            self._sample_error = error
        except StoppedWaitingError as error:
            logger.warning("%s: asked to stop before its samples arrived", error)
        else:
            assert batch.step == self.step, (batch.step, self.step)  # from 0
            return batch
        self._samples_ended = True
        return None

    def _read_numbers(self, leave: int = 0) -> None:
        """Read and log the numbers of all launched steps but the last ``leave``."""
        while len(self._launched) > leave:
            launched = self._launched.popleft()
            numbers = launched.readback.get(self._mesh.world)
            seconds = launched.readback.ended.seconds_since(self._last_ended)
            self._last_ended = launched.readback.ended
            if launched.number == self._first_step:  # from now on no rank compiles
                self._mesh.set_timeout(self._config.training.exchange_timeout_seconds)
            self._note_requests(numbers.notice)
            if numbers.absent:  # nor is any later step applied
                if self._sample_error is not None or not numbers.notice.stop:
                    self._end = End.NO_SAMPLES
                self.step = min(self.step, launched.number - 1)
                continue
            self._skips.check(launched.number, numbers, launched.chain_keys)
            if self._files is not None:
                self._files.record(self._record(launched, numbers, seconds))

    def _record(self, launched: _LaunchedStep, numbers: HostNumbers, seconds: float) -> Record:
        size = self._config.training.global_batch_size
        return {
            "step": launched.number,
            "samples": launched.number * size,
            **numbers.means,
            "grad_norm": numbers.gradient_norm,
            "learning_rate": launched.learning_rate,
            "recycling": launched.recycling,
            "skipped_steps": self._skips.skipped,
            "step_seconds": seconds,
            "samples_per_second": size / seconds,
            "loader_wait_seconds": numbers.notice.wait_seconds,
            "lateness_steps": launched.lateness,
            "time": time.time(),
        }

    def _publish_checkpoint(self) -> Path:
        """Have a checkpoint of this step written, unless there is one, and say where it is."""
        files, state = self._files, self._parts.state
        positions = self._mesh.data.all_gather_object(self._loader.position(self.step))
        lacking = on_first(self._mesh.world, lambda: files is not None and files.lacks(self.step))
        if lacking and files is not None:
            files.publish(self.step, self._skips, Position.union(positions))
        elif lacking:
            for _ in state.whole():  # this rank's part of what the first one writes
                pass
        return checkpoint_path(self._out, self.step)

    def _finish(self) -> TrainingResult:
        """Write the last checkpoint, and say how the training ended."""
        training = self._config.training
        self._mesh.set_timeout(training.start_timeout_seconds)  # all wait for the checkpoint
        checkpoint = self._publish_checkpoint()
        if self._files is not None:
            self._files.finish()
        if self.step < training.steps:
            logger.info("stopped at step %d of %d: %s", self.step, training.steps, checkpoint)
        self._mesh.world.barrier()  # nobody leaves while the last checkpoint is being written
        if self._end is End.NO_SAMPLES:
            raise self._sample_error or ElsewhereError(
                "another rank could not read its samples, see its message"
            )
        completed = self.step >= training.steps or self._end is End.EVALUATION
        skipped = self._skips.skipped
        return TrainingResult(self.step, checkpoint, completed, skipped, self._watch.end)
