"""Time of GPU work, and what the GPU can do at best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from scalefold.bench.kernels.case import Work

REPLAYS = 20
_LEAST_SECONDS = 2e-3
"""Of a replay: the GPU takes some microseconds to begin and to end one, which are no call's."""
_WARM_UP = 3


@dataclass(frozen=True)
class Time:
    """Median seconds of one call.

    Attributes
    ----------
    seconds : float
    method : {"graph", "events"}
        ``graph``: one replay of a CUDA graph holds several calls; no launch overhead. ``events``:
        calls from Python between two events, for what cannot be captured.
    """

    seconds: float
    method: Literal["graph", "events"]


def time_calls(calls: Sequence[Callable[[], object]]) -> Time:
    """Time calls that do the same work, one after the other.

    On different inputs the cache does not hold what a training step would find in memory.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            for call in calls:
                call()
        stream.synchronize()
        graph = _capture(calls, stream)
        if graph is not None and (rounds := _rounds(graph)) > 1:
            calls = [*calls] * rounds
            graph = _capture(calls, stream)
        run = graph.replay if graph is not None else (lambda: [call() for call in calls])
        run()
        seconds = [_seconds(run) / len(calls) for _ in range(REPLAYS)]
    torch.cuda.synchronize()
    return Time(statistics.median(seconds), "graph" if graph is not None else "events")


def _capture(
    calls: Sequence[Callable[[], object]], stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph | None:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    except RuntimeError:
        # Another implementation's kernels may synchronise with the host; ours are tested not to.
        torch.cuda.synchronize()
        return None
    return graph


def _rounds(graph: torch.cuda.CUDAGraph) -> int:
    """How often the calls of a graph are to follow each other in one replay."""
    graph.replay()
    return math.ceil(_LEAST_SECONDS / _seconds(graph.replay))


def _seconds(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


@dataclass(frozen=True)
class Device:
    """What the present GPU reaches, measured: the rates behind the floors.

    Attributes
    ----------
    bytes_per_second : float
        Of a large copy, read and written bytes together.
    flops_per_second : float
        Of a large matrix product in the benchmark's precision.
    exponentials_per_second : float
        16 a clock and SM, at the highest clock.
    cache_bytes : int
    """

    bytes_per_second: float
    flops_per_second: float
    exponentials_per_second: float
    cache_bytes: int

    @classmethod
    def measure(cls, device: torch.device, dtype: torch.dtype) -> Device:
        """Measure the GPU."""
        properties = torch.cuda.get_device_properties(device)
        clock_hertz = properties.clock_rate * 1e3
        return cls(
            bytes_per_second=_copy_rate(device),
            flops_per_second=_product_rate(device, dtype),
            exponentials_per_second=16 * properties.multi_processor_count * clock_hertz,
            cache_bytes=properties.L2_cache_size,
        )

    def floor(self, work: Work) -> float:
        """Seconds below which no implementation can stay on this GPU."""
        return max(
            work.bytes / self.bytes_per_second,
            work.flops / self.flops_per_second,
            work.exponentials / self.exponentials_per_second,
        )


def _copy_rate(device: torch.device, num_bytes: int = 1 << 30) -> float:
    # By a kernel of one addition an element: on an H200 it reaches 4.2 TB/s, `copy_` only 2.7.
    source = torch.empty(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / time_calls([lambda: torch.add(source, 1.0, out=target)]).seconds


def _product_rate(device: torch.device, dtype: torch.dtype, size: int = 8192) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / time_calls([lambda: a @ b]).seconds
