"""Time of GPU work."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.bench.agreement import evaluate, tensors
from scalefold_kernels.bench.case import Args, Draw, Function

_REPLAYS: Final = 20
_MAX_COPIES: Final = 16
_LEAST_SECONDS: Final = 2e-3
"""Of a replay: the GPU takes some microseconds to begin and to end one, which are no call's."""
_WARM_UP: Final = 3

Call = Callable[[], object]


class Time(NamedTuple):
    """Median seconds of one call.

    In a ``graph`` a replay holds several calls, without overhead of launches. What cannot be
    captured is called from Python between two ``events``.
    """

    seconds: float
    method: Literal["graph", "events"]


def times(function: Function, sets: Sequence[Args]) -> dict[str, Any]:
    """Times of a function, for JSON; ``sets`` as `input_sets` makes them."""
    forward, both = calls(function, sets)
    with torch.no_grad():
        found = {"forward": time_calls(forward)}
    found["forward_backward"] = time_calls(both)
    return {
        field: {name: getattr(time, field) for name, time in found.items()}
        for field in Time._fields
    }


def calls(function: Function, sets: Sequence[Args]) -> tuple[list[Call], list[Call]]:
    """One call a set: of forward, to be made without gradients, and of forward and backward."""
    with torch.no_grad():
        grads = gradients_like(list(tensors(function(*sets[0]))))
    forward: list[Call] = [partial(function, *inputs) for inputs in sets]
    return forward, [partial(evaluate, function, inputs, grads) for inputs in sets]


def input_sets(
    make: Callable[[Draw], Args], device: torch.device, dtype: torch.dtype
) -> list[Args]:
    """Inputs that together are more than twice what the GPU's cache holds, two sets or more.

    With one after the other the cache does not hold what a training step would find in memory.
    """
    draw = Draw(device, dtype)
    first = make(draw)
    size = sum(t.numel() * t.element_size() for t in tensors(first))
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    copies = min(max(2, -(-2 * cache // max(size, 1))), _MAX_COPIES)
    return [first, *(make(draw) for _ in range(copies - 1))]


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


def time_calls(calls: Sequence[Call]) -> Time:
    """Time calls that do the same work, one after the other."""
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
        seconds = [_seconds(run) / len(calls) for _ in range(_REPLAYS)]
    torch.cuda.synchronize()
    return Time(statistics.median(seconds), "graph" if graph is not None else "events")


def _capture(calls: Sequence[Call], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph | None:
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


def _seconds(run: Call) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3
