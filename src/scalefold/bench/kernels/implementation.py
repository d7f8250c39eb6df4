"""Error, times and memory of one implementation of a case."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scalefold.bench.kernels.agreement import Exact, evaluate, tensors
from scalefold.bench.kernels.case import Function, Inputs, KernelCase
from scalefold.bench.kernels.timing import Device, Time, time_calls

MAX_COPIES = 16


@dataclass(frozen=True)
class Setting:
    """Where and in what precision a case is measured."""

    dtype: torch.dtype
    device: torch.device
    gpu: Device

    def measure(self, case: KernelCase, exact: Exact, function: Function) -> dict[str, Any]:
        """Numbers of one implementation, for JSON: its error, times and peak memory."""
        return {"error": _error(exact, function)} | self.times(case, function)

    def times(self, case: KernelCase, function: Function) -> dict[str, Any]:
        """Times and peak memory; where memory does not suffice, that it does not.

        Times are with inputs beyond the cache, and with the same inputs each time, which are in the
        cache as far as they fit.
        """
        try:
            sets = input_sets(case, self.dtype, self.device, self.gpu)
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


def _times(
    function: Function, sets: Sequence[Inputs], grads: Sequence[torch.Tensor]
) -> dict[str, Time]:
    """Of forward alone, and of forward and backward."""
    with torch.no_grad():
        forward = time_calls([functools.partial(function, *inputs) for inputs in sets])
    both = time_calls([functools.partial(evaluate, function, inputs, grads) for inputs in sets])
    return {"forward": forward, "forward_backward": both}


def _error(exact: Exact, function: Function) -> float | None:
    try:
        return exact.agreement(function).error
    except torch.OutOfMemoryError:
        return None


def gradients_like(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients in the outputs' own layout: those of slices of one tensor are such slices too.

    So a training step finds them, where one op's backward feeds the other's.
    """
    bases: dict[int, torch.Tensor] = {}
    found = []
    for out in outputs:
        base = out if out._base is None else out._base
        whole = bases.setdefault(id(base), torch.randn_like(base))
        found.append(whole.as_strided(out.shape, out.stride(), out.storage_offset()))
    return found


def input_sets(
    case: KernelCase, dtype: torch.dtype, device: torch.device, gpu: Device
) -> list[Inputs]:
    """Inputs that together are more than twice what the GPU's cache holds, two sets at least."""
    first = case.inputs(device, dtype)
    size = sum(t.numel() * t.element_size() for t in tensors(first))
    copies = min(max(2, -(-2 * gpu.cache_bytes // max(size, 1))), MAX_COPIES)
    return [first, *(case.inputs(device, dtype) for _ in range(copies - 1))]


def _peak_bytes(call: Callable[[], object]) -> int:
    """Memory that a call takes beyond its inputs, at its highest."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
