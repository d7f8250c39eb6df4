"""Time the loader beside torch's DataLoader: waits of a step, throughput, processor time.

Every loader serves the same samples of the same shards to steps of a stated length. On a CPU a step
sleeps, and a wait is the time in the loader. On a GPU the step is a kernel that spins, the host is
one step ahead, as in training, and a wait is how long the device was idle between two steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

from scalefold.bench.record import provenance, write_record
from scalefold.bench.sample_costs import device_costs, processor_seconds
from scalefold.bench.variation import varied
from scalefold.config.schema import Config
from scalefold.features.contract import Features
from scalefold.loader.loader import TrainingLoader
from scalefold.loader.prepare import Preparation, SampleTask
from scalefold.loader.recycling import recycling_count
from scalefold.loader.sampler import TrainingSampler
from scalefold.shards.reader import ShardReader
from scalefold.shards.records import Sample

_WARM_UP_STEPS = 5
"""Not counted: workers start."""


@dataclasses.dataclass(frozen=True)
class Delay:
    """Every ``every``-th sample takes ``seconds`` longer; 0: none."""

    every: int = 0
    seconds: float = 0.0


class DelayedReader:
    """A shard reader that waits before some reads, as on a busy file system.

    Reads are counted over all processes that it is passed to when they start.
    """

    def __init__(self, reader: ShardReader, delay: Delay) -> None:
        self._reader, self._delay = reader, delay
        self._reads = multiprocessing.get_context("spawn").Value("q", 0)

    @property
    def index(self) -> Any:
        """The shards' index."""
        return self._reader.index

    def sample(self, key: str) -> Sample:
        """Read a sample, after the delay if it is one of those."""
        with self._reads.get_lock():
            number = self._reads.value
            self._reads.value += 1
        if self._delay.every and number % self._delay.every == self._delay.every // 2:
            time.sleep(self._delay.seconds)
        return self._reader.sample(key)


def bench_loader(
    config: Config,
    shards: Path,
    out: Path,
    *,
    steps: int,
    step_seconds: float,
    delay: Delay,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Measure both loaders with and without delayed samples, and write the numbers as JSON.

    Parameters
    ----------
    config : Config
        Sizes of the features; ``training.loader_workers``, ``prefetch``, ``max_staleness``, and
        ``global_batch_size`` as the number of samples a step of this process.
    step_seconds : float
        Length of a step; 0 measures the largest throughput.

    Raises
    ------
    InputError
        The shards cannot be used, or the file cannot be written.
    """
    reader = ShardReader(shards)
    result = provenance("loader", config, device) | {
        "workers": config.training.loader_workers,
        "samples_per_step": config.training.global_batch_size,
        "step_seconds": step_seconds,
        "processor_seconds": processor_seconds(config, reader),
        "loaders": [],
    }
    console.print("processor time of a sample:", result["processor_seconds"])
    if device.type == "cuda":
        result["features_of_a_sample"] = device_costs(config, reader, device)
        console.print("features of a sample on the device:", result["features_of_a_sample"])
    config = varied(config, {"training.steps": _WARM_UP_STEPS + steps})
    in_order = varied(config, {"training.max_staleness": 0})
    loaders: dict[str, Callable[[Delay], AbstractContextManager[Iterator[Any]]]] = {
        "ready first": lambda late: TrainingLoader(DelayedReader(reader, late), config, device),
        "in order": lambda late: TrainingLoader(DelayedReader(reader, late), in_order, device),
        "torch DataLoader": lambda late: closing(_torch_batches(in_order, reader, late, device)),
    }
    for late in [Delay(), delay] if delay.every else [Delay()]:
        for name, make in loaders.items():
            row = {"loader": name, "delay": dataclasses.asdict(late)}
            row |= _measure(make(late), steps, step_seconds, device)
            result["loaders"].append(row)
            console.print(_table([row]))
            write_record(result, out)
    return result


def _measure(
    opened: AbstractContextManager[Iterator[Any]], steps: int, seconds: float, device: torch.device
) -> dict[str, Any]:
    """Serve all steps: how long each waited, and how many were made a second."""
    clock = _DeviceClock(seconds, device) if device.type == "cuda" else _HostClock(seconds)
    hosts = []
    began = started = time.perf_counter()
    with opened as batches:
        for step, batch in enumerate(batches, 1):
            del batch
            hosts.append(time.perf_counter() - started)
            clock.step(hosts[-1])
            started = time.perf_counter()
            if step == _WARM_UP_STEPS:
                began = started
        total = started - began
        waits = clock.waits()[_WARM_UP_STEPS:]
        order = batches.bias.report() if isinstance(batches, TrainingLoader) else None
    return {
        "wait_seconds": _spread(waits),
        "wait_share": round(sum(waits) / total, 5),
        "host_seconds": _spread(hosts[_WARM_UP_STEPS:]),
        "steps_per_second": round(steps / total, 3),
        "order": order,
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "mean": round(statistics.mean(seconds), 5),
        "p50": round(statistics.median(seconds), 5),
        "p99": round(float(np.quantile(seconds, 0.99)), 5),
        "max": round(max(seconds), 5),
    }


class _HostClock:
    """Steps that the host sleeps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waits: list[float] = []

    def step(self, host_seconds: float) -> None:
        """Make a step after this time in the loader."""
        self._waits.append(host_seconds)
        time.sleep(self._seconds)

    def waits(self) -> list[float]:
        """Return how long each step waited."""
        return self._waits


class _DeviceClock:
    """Steps that the device spins, one of them queued ahead."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        self._cycles = int(seconds * self._cycles_per_second(device))
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @staticmethod
    def _cycles_per_second(device: torch.device) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cycles = 10**8  # torch has no public way to keep a GPU busy for a given time
        torch.cuda._sleep(cycles // 100)
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize(device)
        return cycles / (start.elapsed_time(end) / 1000)

    def step(self, host_seconds: float) -> None:
        """Queue a step behind the batch, and wait for the step before."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(self._cycles)
        end.record()
        if self._events:
            self._events[-1][1].synchronize()
        self._events.append((start, end))

    def waits(self) -> list[float]:
        """Return how long the device was idle before each step."""
        torch.cuda.synchronize()
        pairs = itertools.pairwise(self._events)
        return [0.0] + [last.elapsed_time(first) / 1000 for (_, last), (first, _) in pairs]


class _Draws(Dataset[list[Features]]):
    """The samples of a run for torch's DataLoader: features are made in its workers."""

    def __init__(self, config: Config, reader: DelayedReader) -> None:
        self._config, self._reader = config, reader
        self._sampler = TrainingSampler(reader.index, config.sampling, config.seed)

    def __len__(self) -> int:
        return self._config.training.steps * self._config.training.global_batch_size

    def __getitem__(self, draw: int) -> list[Features]:
        training = self._config.training
        step = draw // training.global_batch_size
        recycling = recycling_count(
            self._config.seed, step, training.max_recycling, training.recycling_draw
        )
        features = Preparation(self._reader, self._config.features, self._config.seed, True)
        task = SampleTask(draw, self._sampler.key(draw), recycling + 1)
        return cast(list[Features], features.make(task, features.read(task)))


def _torch_batches(
    config: Config, reader: ShardReader, delay: Delay, device: torch.device
) -> Generator[list[list[Features]], None, None]:
    training, workers = config.training, config.training.loader_workers
    loader = DataLoader(
        _Draws(config, DelayedReader(reader, delay)),
        batch_size=training.global_batch_size,
        num_workers=workers,
        # Without workers torch takes neither.
        prefetch_factor=max(training.prefetch // workers, 1) if workers else None,
        multiprocessing_context="spawn" if workers else None,
        collate_fn=list,
        pin_memory=device.type == "cuda",
    )
    for samples in loader:
        yield [
            [{name: t.to(device, non_blocking=True) for name, t in f.items()} for f in passes]
            for passes in samples
        ]


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("loader", "delayed", "wait p50 / p99 / max, ms", "share", "steps a second")
    for row in rows:
        wait, delay = row["wait_seconds"], row["delay"]
        late = f"1 in {delay['every']}, {delay['seconds']:g} s" if delay["every"] else "none"
        times = " / ".join(f"{1000 * wait[name]:.1f}" for name in ("p50", "p99", "max"))
        speed = f"{row['steps_per_second']:.2f}"
        table.add_row(row["loader"], late, times, f"{row['wait_share']:.2%}", speed)
    return table
