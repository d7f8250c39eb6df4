"""Time of GPU work, and what the GPU can do at best."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from scalefold_kernels.bench.agreement import evaluate, tensors
from scalefold_kernels.bench.case import Function, Inputs, KernelCase, Work

REPLAYS: Final = 20
MAX_COPIES: Final = 16
_LEAST_SECONDS: Final = 2e-3
"""Of a replay: the GPU takes some microseconds to begin and to end one, which are no call's."""
_WARM_UP: Final = 3


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


@dataclass(frozen=True)
class Gpu:
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
    def measure(cls, device: torch.device, dtype: torch.dtype) -> Gpu:
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


@dataclass(frozen=True)
class Setting:
    """Where and in what precision a case is measured."""

    dtype: torch.dtype
    device: torch.device
    gpu: Gpu

    @classmethod
    def here(cls, dtype: torch.dtype) -> Setting:
        """On the current GPU."""
        device = torch.device("cuda", torch.cuda.current_device())
        return cls(dtype, device, Gpu.measure(device, dtype))

    def times(self, case: KernelCase, function: Function) -> dict[str, Any]:
        """Times and peak memory, for JSON; where memory does not suffice, that it does not.

        Times are with inputs beyond the cache, and with the same inputs each time, which are in the
        cache as far as they fit.
        """
        try:
            sets = self.input_sets(case)
            with torch.no_grad():
                grads = gradients_like(list(tensors(function(*sets[0]))))
            beyond = _times(function, sets, grads)
            within = _times(function, sets[:1] * len(sets), grads)
            peak = _peak_bytes(lambda: evaluate(function, sets[0], grads))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return {"out_of_memory": True}
        return {
            "seconds": {part: time.seconds for part, time in beyond.items()},
            "seconds_in_cache": {part: time.seconds for part, time in within.items()},
            "method": {part: time.method for part, time in beyond.items()},
            "peak_bytes": peak,
        }

    def input_sets(self, case: KernelCase) -> list[Inputs]:
        """Inputs that together are more than twice what the GPU's cache holds, two sets or more."""
        first = case.inputs(self.device, self.dtype)
        size = sum(t.numel() * t.element_size() for t in tensors(first))
        copies = min(max(2, -(-2 * self.gpu.cache_bytes // max(size, 1))), MAX_COPIES)
        return [first, *(case.inputs(self.device, self.dtype) for _ in range(copies - 1))]


def gradients_like(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the outputs' own layout: those of slices of one tensor are such slices too.

    So a training step finds them, where one op's backward feeds the other's.
    """
    bases: dict[int, Tensor] = {}
    found = []
    for out in outputs:
        base = out if out._base is None else out._base
        whole = bases.setdefault(id(base), torch.randn_like(base))
        found.append(whole.as_strided(out.shape, out.stride(), out.storage_offset()))
    return found


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


def _times(function: Function, sets: Sequence[Inputs], grads: Sequence[Tensor]) -> dict[str, Time]:
    """Of forward alone, and of forward and backward."""
    with torch.no_grad():
        forward = time_calls([functools.partial(function, *inputs) for inputs in sets])
    both = time_calls([functools.partial(evaluate, function, inputs, grads) for inputs in sets])
    return {"forward": forward, "forward_backward": both}


def _peak_bytes(call: Callable[[], object]) -> int:
    """Memory that a call takes beyond its inputs, at its highest."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


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


def _copy_rate(device: torch.device, num_bytes: int = 1 << 30) -> float:
    # By a kernel of one addition an element: on an H200 it reaches 4.2 TB/s, `copy_` only 2.7.
    source = torch.empty(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / time_calls([lambda: torch.add(source, 1.0, out=target)]).seconds


def _product_rate(device: torch.device, dtype: torch.dtype, size: int = 8192) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / time_calls([lambda: a @ b]).seconds
