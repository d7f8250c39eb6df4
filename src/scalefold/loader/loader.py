"""The training loader: batches of features in the order of the steps, prepared ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import pyarrow as pa
import torch

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.features.pipeline import collate_passes
from scalefold.loader.prepare import SampleReader, SampleTask, prepare
from scalefold.loader.recycling import recycling_count
from scalefold.loader.sampler import TrainingSampler
from scalefold.loader.worker import WorkerPool


class TrainingReader(SampleReader, Protocol):
    """What the loader asks of the shards."""

    @property
    def index(self) -> pa.Table:
        """One row a chain, see :class:`~scalefold.loader.sampler.TrainingSampler`."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's samples on one rank.

    Attributes
    ----------
    step : int
    draws : list of int
        Index of each sample's draw in the run.
    chain_keys : list of str
    recycling : int
        Passes without gradient; the same on all ranks.
    passes : list of dict
        Features of each of the ``recycling + 1`` passes, batched.
    wait_seconds : float
        How long the step waited for this batch.
    """

    step: int
    draws: list[int]
    chain_keys: list[str]
    recycling: int
    passes: list[Features]
    wait_seconds: float


@dataclass(frozen=True, eq=False)
class _Pending:
    step: int
    recycling: int
    tasks: list[SampleTask]
    results: list[Future[list[Features]]]


class TrainingLoader(Iterator[Batch]):
    """Iterates over the batches of a training run, from a step on to the run's last.

    Batches come in the order of the steps and are bit-reproducible: sample ``i`` of step ``s`` is
    draw ``s * global_batch_size + i`` whatever the number of ranks and workers, and rank ``r`` gets
    the ``r``-th contiguous part. The step number is the whole position.

    With ``training.loader_workers`` 0 samples are prepared when they are asked for; otherwise
    worker processes prepare at least ``training.prefetch`` samples ahead. Use as a context manager,
    or call :meth:`close`.

    Parameters
    ----------
    reader : TrainingReader
        Shards; picklable where there are workers.
    config : Config
        Sections ``features``, ``sampling``, ``training`` and the seed are used.
    device : torch.device or str
        Where batches are put.
    start_step : int
        First step to deliver.
    rank, world_size : int
        This process's part of each global batch.

    Raises
    ------
    InputError
        If the global batch cannot be divided among the ranks, or no chain is left to train on.
        While iterating: if a chain cannot be used. The message names the chain.
    SampleError
        While iterating: if a sample failed otherwise, or its worker died. Failures of samples
        prepared ahead are raised at once, not when their turn comes.
    """

    def __init__(
        self,
        reader: TrainingReader,
        config: Config,
        device: torch.device | str = "cpu",
        start_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        training = config.training
        if not 0 <= rank < world_size or training.global_batch_size % world_size:
            raise InputError(
                f"training.global_batch_size {training.global_batch_size} cannot be divided among "
                f"{world_size} ranks (this is rank {rank}): make it a multiple of the ranks"
            )
        self.sampler = TrainingSampler(reader.index, config.sampling, config.seed)
        self._reader = reader
        self._config = config
        self._device = torch.device(device)
        self._local_size = training.global_batch_size // world_size
        self._first_of_rank = rank * self._local_size
        self._next_step = start_step
        self._pending: deque[_Pending] = deque()
        self._closed = False
        self._pool: WorkerPool | None = None
        if training.loader_workers:
            self._pool = WorkerPool(training.loader_workers, reader, config.features, config.seed)

    def __next__(self) -> Batch:
        """Return the next step's batch, waiting for it if need be."""
        if self._closed:
            raise RuntimeError("the loader is closed: make a new one with start_step")
        started = time.perf_counter()
        self._fill()
        if not self._pending:
            raise StopIteration
        head = self._pending[0]
        try:
            samples = self._collect(head)
        except BaseException:
            self.close()
            raise
        waited = time.perf_counter() - started
        self._pending.popleft()
        self._fill()
        return Batch(
            step=head.step,
            draws=[task.draw for task in head.tasks],
            chain_keys=[task.chain_key for task in head.tasks],
            recycling=head.recycling,
            passes=_to_device(collate_passes(samples), self._device),
            wait_seconds=waited,
        )

    def __enter__(self) -> TrainingLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and drop what they prepared; can be called again."""
        self._closed = True
        self._pending.clear()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _fill(self) -> None:
        """Plan steps until enough samples are under way (one step where there are no workers)."""
        training = self._config.training
        ahead = training.prefetch if self._pool is not None else 1
        while self._next_step < training.steps and len(self._pending) * self._local_size < ahead:
            self._pending.append(self._plan(self._next_step))
            self._next_step += 1

    def _plan(self, step: int) -> _Pending:
        config = self._config
        recycling = recycling_count(
            config.seed, step, config.training.max_recycling, config.training.recycling_draw
        )
        first = step * config.training.global_batch_size + self._first_of_rank
        tasks = [
            SampleTask(draw, self.sampler.key(draw), recycling + 1)
            for draw in range(first, first + self._local_size)
        ]
        results = [self._pool.submit(task) for task in tasks] if self._pool is not None else []
        return _Pending(step, recycling, tasks, results)

    def _collect(self, head: _Pending) -> list[list[Features]]:
        """Return the head's samples; raise as soon as any sample under way has failed."""
        if self._pool is None:
            config = self._config
            return [prepare(self._reader, config.features, config.seed, t) for t in head.tasks]
        under_way = {result for pending in self._pending for result in pending.results}
        while True:
            finished = {result for result in under_way if result.done()}
            for result in finished:
                result.result()
            under_way -= finished
            if all(result.done() for result in head.results):
                return [result.result() for result in head.results]
            wait(under_way, return_when=FIRST_COMPLETED)


def _to_device(passes: Sequence[Features], device: torch.device) -> list[Features]:
    """Move features; a tensor that passes share is moved once."""
    moved: dict[int, torch.Tensor] = {}
    return [
        {name: moved.setdefault(id(tensor), tensor.to(device)) for name, tensor in features.items()}
        for features in passes
    ]
