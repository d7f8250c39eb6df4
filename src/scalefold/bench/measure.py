"""Time, launches and memory of one way to make training steps."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from scalefold.bench.flops import StepFlops, peak_flops_per_second
from scalefold.bench.trace import gpu_work
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.features.pipeline import training_features
from scalefold.loader.sampler import TrainingSampler
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import TrainingParts
from scalefold.train.step_numbers import StepNumbers

_MOST_REPEATS: Final = 10


@dataclass(frozen=True)
class StepMeasurement:
    """What was measured. GPU numbers are None on a CPU.

    Attributes
    ----------
    first_step_seconds : float
        The first step of all: compilation and capture are in it.
    step_seconds_by_recycling : list of float
        Medians; passes, loss, backward, clip, update, averaging.
    mean_step_seconds : float
        Over uniformly drawn recycling counts.
    launches_by_recycling : list of int or None
        Pieces of work that the device ran in a step: kernels, copies, fills.
    gpu_busy_seconds_by_recycling : list of float or None
        Time in which it ran one; what perfect launching would take.
    peak_memory_gib, reserved_memory_gib : float or None
        Most allocated by tensors, and most taken from the device.
    teraflops_by_recycling : list of float
        Floating-point operations of the model, see `scalefold.bench.flops`.
    flop_utilisation : float or None
        Of the mean step: operations a second over the device's peak in bfloat16.
    """

    first_step_seconds: float
    step_seconds_by_recycling: list[float]
    mean_step_seconds: float
    samples_per_second: float
    launches_by_recycling: list[int] | None
    gpu_busy_seconds_by_recycling: list[float] | None
    peak_memory_gib: float | None
    reserved_memory_gib: float | None
    teraflops_by_recycling: list[float]
    flop_utilisation: float | None

    def rounded(self) -> dict[str, Any]:
        """For JSON, with the digits that mean something."""
        return {
            name: [_rounded(v) for v in value] if isinstance(value, list) else _rounded(value)
            for name, value in asdict(self).items()
        }


def prepared_samples(config: Config, shards: Path, device: torch.device) -> list[list[Features]]:
    """A step's samples with the features of all recycling passes: loading is not measured here."""
    reader = ShardReader(shards)
    sampler = TrainingSampler(reader.index, config.sampling, config.seed)
    numbers = range(config.training.max_recycling + 1)
    return [
        training_features(
            reader.sample(sampler.key(draw)), config.features, config.seed, draw, numbers, device
        )
        for draw in range(config.training.global_batch_size)
    ]


def filled(samples: Sequence[list[Features]]) -> dict[str, float]:
    """How much of a step's samples is no padding, from 0 to 1: residues, rows, templates.

    Kernels do padding's work, too, and may even take longer where a mask has holes.
    """
    masks = {
        "N_res": "seq_mask",
        "msa_clusters": "msa_mask",
        "extra_msa": "extra_msa_mask",
        "templates": "template_mask",
    }
    return {
        name: _rounded(statistics.mean(passes[0][mask].float().mean().item() for passes in samples))
        for name, mask in masks.items()
    }


@contextlib.contextmanager
def released(device: torch.device) -> Iterator[None]:
    """Afterwards, memory of what was assembled within is free again."""
    try:
        yield
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def require_finite(numbers: StepNumbers) -> None:
    """Raise `InputError` if a step was not finite; waits for the device."""
    if not bool(numbers.finite):
        raise InputError("a step of the benchmark was not finite, so its numbers mean nothing")


def measure_steps(
    parts: TrainingParts,
    config: Config,
    samples: Sequence[list[Features]],
    flops: StepFlops,
    *,
    seconds: float,
    device: torch.device,
) -> StepMeasurement:
    """Time steps by recycling count, after one of the most passes to warm up.

    Steps of a count are repeated for this many seconds, `_MOST_REPEATS` times at most.

    Raises
    ------
    InputError
        If a step was not finite.
    """
    on_gpu, rate = device.type == "cuda", config.optimiser.learning_rate
    counts = range(len(samples[0]))

    def step(recycling: int) -> None:
        passes = [passes[: recycling + 1] for passes in samples]
        require_finite(parts.step(passes, rate))  # waits for the device

    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    first = _seconds(partial(step, counts[-1]), device)
    by_recycling = [_median_seconds(partial(step, count), seconds, device) for count in counts]
    peak, reserved = None, None
    launches, busy = None, None
    if on_gpu:
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        reserved = torch.cuda.max_memory_reserved(device) / 2**30
        launches, busy = _device_work(step, len(counts), device)
    num_samples = config.training.global_batch_size
    operations = [flops.of_step(count, num_samples) for count in counts]
    best = peak_flops_per_second(device)
    mean = statistics.mean(by_recycling)
    return StepMeasurement(
        first_step_seconds=first,
        step_seconds_by_recycling=by_recycling,
        mean_step_seconds=mean,
        samples_per_second=num_samples / mean,
        launches_by_recycling=launches,
        gpu_busy_seconds_by_recycling=busy,
        peak_memory_gib=peak,
        reserved_memory_gib=reserved,
        teraflops_by_recycling=[count * 1e-12 for count in operations],
        flop_utilisation=None if best is None else statistics.mean(operations) / mean / best,
    )


def _device_work(
    step: Callable[[int], None], num_counts: int, device: torch.device
) -> tuple[list[int], list[float]]:
    """Launches and busy seconds by recycling count.

    Of the first two counts; each further pass repeats the second's work.
    """
    traces = [gpu_work(partial(step, count), device) for count in range(min(num_counts, 2))]
    launches = _continued([len(found.work) for found in traces], num_counts)
    return launches, _continued([found.busy_seconds for found in traces], num_counts)


def _continued(values: list[Any], length: int) -> list[Any]:
    first, last = values[0], values[-1]
    return [first + number * (last - first) for number in range(length)]


def _median_seconds(
    work: Callable[[], object], enough_seconds: float, device: torch.device
) -> float:
    times: list[float] = []
    while not times or (len(times) < _MOST_REPEATS and sum(times) < enough_seconds):
        times.append(_seconds(work, device))
    return statistics.median(times)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
