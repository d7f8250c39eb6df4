"""Configurations for the offline compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from types import ModuleType

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded

from scalefold_kernels.ops.global_attention.op import checked, results

forward = import_module("scalefold_kernels.ops.global_attention.triton.forward")
backward = import_module("scalefold_kernels.ops.global_attention.triton.backward")

# (channels, heads, channels of a head): the extra MSA's, and some that fill no block
_SIZES = [(64, 8, 8), (24, 3, 5)]


def compile_cases() -> list[CompileCase]:
    """What the launches give to their kernels; each architecture with its configuration."""
    settings = product(_SIZES, (torch.bfloat16, torch.float32), ("sm_80", "sm_90"))
    return [case for size, dtype, arch in settings for case in _cases(*size, dtype, arch)]


def _cases(
    channels: int, heads: int, head: int, dtype: torch.dtype, arch: str
) -> Iterator[CompileCase]:
    new = partial(empty, dtype=dtype)
    every = heads * head
    x, mask = new(1, 1024, 256, channels), new(1, 1024, 256).float()
    row, of_all, of_one = new(channels), new(every, channels), new(head, channels)
    parameters = checked(
        x, mask, row, row, of_all, of_one, of_one, of_all, new(every), new(channels, every), row
    )
    out, *columns = results(x, parameters)
    flat = new(sum(p.numel() for p in parameters))
    name = f"C={channels} H={heads} {str(dtype).removeprefix('torch.')} {arch}"
    launches: dict[ModuleType, Callable[[], None]] = {
        forward: lambda: forward.forward(x, mask, parameters, out, columns),
        backward: lambda: backward.backward(x, x, mask, parameters, columns, x, flat),
    }
    for module, launch in launches.items():
        for kernel in [n for n in vars(module) if n.endswith("_kernel")]:
            yield recorded(module, kernel, launch, f"{kernel.removesuffix('_kernel')} {name}", arch)
