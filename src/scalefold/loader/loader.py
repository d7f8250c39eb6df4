"""The training loader: batches of features, read ahead, served in order or ready first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import torch

from scalefold.config.schema import Config, TrainingConfig
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.loader.device_features import DeviceFeatures
from scalefold.loader.order import Position, ServingOrder, overtaken
from scalefold.loader.order_bias import OrderBias
from scalefold.loader.prepare import Preparation, SampleReader, SampleTask
from scalefold.loader.recycling import recycling_count
from scalefold.loader.sampler import TrainingSampler
from scalefold.loader.tensor_block import TensorBlock
from scalefold.loader.waiting import LOOK_SECONDS, SampleWait
from scalefold.loader.worker import WorkerPool

logger = logging.getLogger(__name__)

START = Position(0)


class TrainingReader(SampleReader, Protocol):
    """The part of a shard reader that the loader uses."""

    @property
    def index(self) -> pa.Table:
        """One row a chain, see :class:`~scalefold.loader.sampler.TrainingSampler`."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's samples on one rank.

    Attributes
    ----------
    draws : list of int
        Index of each sample's draw in the run, ascending.
    lateness : list of int
        Steps that each sample comes after its place; negative: before.
    recycling : int
        Passes without gradient; the same on all ranks.
    samples : list of list of dict
        Of each sample the features of its ``recycling + 1`` passes, B = 1. On a GPU they are ready
        for work that is queued on the stream on which the batch was asked for.
    wait_seconds : float
        How long the step waited for samples.
    """

    step: int
    draws: list[int]
    chain_keys: list[str]
    lateness: list[int]
    recycling: int
    samples: list[list[Features]]
    wait_seconds: float


def local_batch_size(training: TrainingConfig, world_size: int) -> int:
    """Samples of a step on each of ``world_size`` ranks.

    Raises
    ------
    InputError
        ``training.global_batch_size`` cannot be divided among them.
    """
    if training.global_batch_size % world_size:
        raise InputError(
            f"training.global_batch_size {training.global_batch_size} cannot be divided among "
            f"{world_size} ranks: make it a multiple of the ranks"
        )
    return training.global_batch_size // world_size


class TrainingLoader(Iterator[Batch]):
    """Iterates over the batches of a training run, from a position on to the run's last step.

    Draw ``d`` is a pure function of the seed, and its place is at step ``d // global_batch_size``
    whatever the number of ranks and workers; rank ``r`` has the ``r``-th contiguous part of each
    step. With ``training.max_staleness`` 0 (or ``training.deterministic``) samples are served at
    their places, bit-reproducibly. Otherwise the first samples that are ready are served, each
    rank's for itself, no sample more than this many steps late (`scalefold.loader.order`).

    With ``training.loader_workers`` 0 samples are prepared when they are asked for, in order;
    otherwise worker processes keep ``training.prefetch`` samples ahead, and as many as a step
    needs. Samples that later ones have overtaken do not count there. Use as a context manager, or
    call :meth:`close`.

    Ranks that share their samples (axial parallelism) have one loader among them: ready-first
    would give each another batch.

    Parameters
    ----------
    reader : TrainingReader
        Shards; picklable where there are workers.
    config : Config
        Sections ``features``, ``sampling``, ``training`` and the seed are used.
    device : torch.device or str
        Where batches are put. A GPU makes the features itself, beside the step that is running.
    start : Position
        Of all ranks, as `Position.union` of :meth:`position` gives it.
    rank, world_size : int
        This process's part of each global batch.
    stop : Event, optional
        Set when the training is to end: no sample is waited for much longer then.

    Raises
    ------
    InputError
        If the global batch cannot be divided among the ranks, or no chain is left to train on.
        While iterating: if a chain cannot be used. The message names the chain.
    SampleError
        While iterating: if a sample failed otherwise, or worker processes died of it twice.
        Failures of samples prepared ahead are raised at once, not when their turn comes.
    StoppedWaitingError
        While iterating: if ``stop`` is set and samples do not come.
    """

    def __init__(
        self,
        reader: TrainingReader,
        config: Config,
        device: torch.device | str = "cpu",
        start: Position = START,
        rank: int = 0,
        world_size: int = 1,
        stop: threading.Event | None = None,
    ) -> None:
        training = config.training
        self._stop = stop or threading.Event()
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self._local_size = local_batch_size(training, world_size)
        self.sampler = TrainingSampler(reader.index, config.sampling, config.seed)
        self.bias = OrderBias(reader.index)
        self._config = config
        staleness = 0 if training.deterministic else training.max_staleness
        self._order = ServingOrder(
            start, self._local_size, training.global_batch_size, rank, staleness
        )
        device = torch.device(device)
        self._features = DeviceFeatures(config.features, device)
        self._preparation = Preparation(
            reader, config.features, config.seed, make_features=device.type == "cpu"
        )
        self._results: dict[int, Future[TensorBlock]] = {}
        self._closed = False
        self._pool: WorkerPool | None = None
        if training.loader_workers:
            self._pool = WorkerPool(training.loader_workers, self._preparation)

    def __next__(self) -> Batch:
        """Return the next step's batch, waiting for samples if need be."""
        if self._closed:
            raise RuntimeError("the loader is closed: make a new one from a position")
        step, training = self._order.step, self._config.training
        if step >= training.steps:
            raise StopIteration
        recycling = recycling_count(
            self._config.seed, step, training.max_recycling, training.recycling_draw
        )
        started = time.perf_counter()
        try:
            draws = self._collect() if self._pool is not None else self._prepare(recycling + 1)
        except BaseException:
            self.close()
            raise
        waited = time.perf_counter() - started
        blocks = [self._results.pop(draw).result() for draw in draws]
        lateness = self._order.serve(draws)
        keys = [self.sampler.key(draw) for draw in draws]
        self.bias.add(keys, lateness)
        if self._pool is not None:
            self._fill()
        samples = self._features(blocks, recycling + 1)
        return Batch(step, draws, keys, lateness, recycling, samples, waited)

    def __enter__(self) -> TrainingLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def position(self, step: int) -> Position:
        """Where this rank is in its data when ``step`` steps have been made.

        Parameters
        ----------
        step : int
            The number of batches taken, or a few less: of steps that came to nothing.
        """
        return self._order.position(step)

    def close(self) -> None:
        """End the workers and drop what they prepared; can be called again."""
        self._closed = True
        self._results.clear()
        if self._pool is not None:
            if self.bias.samples and not self._order.in_place:
                logger.info("order of samples: %s", self.bias)
            self._pool.close()
            self._pool = None

    def _prepare(self, num_passes: int) -> list[int]:
        """Prepare this step's samples here and now."""
        draws = [self._order.take_up() for _ in range(self._local_size)]
        for draw in draws:
            task = SampleTask(draw, self.sampler.key(draw), num_passes)
            prepared = self._preparation.make(task, self._preparation.read(task))
            result: Future[TensorBlock] = Future()
            result.set_result(TensorBlock.pack(prepared))
            self._results[draw] = result
        return draws

    def _collect(self) -> list[int]:
        """Wait until the samples of this step are ready; raise as soon as any has failed."""
        waiting = SampleWait(self._order.step + 1, self._stop)
        while True:
            self._fill()
            ready = self._ready()
            for draw in ready:
                self._results[draw].result()
            chosen = self._order.choose(ready)
            if chosen is not None:
                return chosen
            missing = sorted(self._results.keys() - ready)
            wait([self._results[draw] for draw in missing], LOOK_SECONDS, FIRST_COMPLETED)
            waiting.look([f"draw {draw}, chain {self.sampler.key(draw)}" for draw in missing])

    def _fill(self) -> None:
        """Have samples prepared until enough are ready or on their way."""
        assert self._pool is not None
        ahead = max(self._config.training.prefetch, self._local_size)
        ready = self._ready()
        in_hand = len(self._results) - len(ready)
        on_their_way = len(self._results) - overtaken(self._order.outstanding, ready)
        while on_their_way < ahead and in_hand < self._pool.capacity and self._goes_on():
            draw = self._order.take_up()
            task = SampleTask(draw, self.sampler.key(draw), self._num_passes(draw))
            self._results[draw] = self._pool.submit(task)
            in_hand += 1
            on_their_way += 1

    def _ready(self) -> set[int]:
        return {draw for draw, result in self._results.items() if result.done()}

    def _goes_on(self) -> bool:
        """Whether a further draw can be wanted: in order, not after the last step."""
        order = self._order
        return not order.in_place or order.upcoming_place() < self._config.training.steps

    def _num_passes(self, draw: int) -> int:
        """Passes to make decisions for: all, unless the step that the sample serves is known."""
        training = self._config.training
        if not self._order.in_place:
            return training.max_recycling + 1
        step = self._order.place(draw)
        return 1 + recycling_count(
            self._config.seed, step, training.max_recycling, training.recycling_draw
        )
