"""Configurations that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded
from torch import Tensor

from scalefold_kernels.ops.transition import hopper, triton
from scalefold_kernels.ops.transition.op import Kept, Parameters

Size = tuple[int, int, int]
"""Rows, channels, hidden channels."""

# Of pair, MSA, extra MSA and template pair representation
_SIZES = [(65536, 128, 512), (32768, 256, 1024), (262144, 64, 256), (262144, 64, 128)]


def compile_cases() -> list[CompileCase]:
    """Every kernel at the model's sizes; each architecture with the configuration it would take."""
    portable = [
        case
        for size in _SIZES
        for dtype in (torch.bfloat16, torch.float32)
        for arch in ("sm_80", "sm_90")
        for case in _portable(size, dtype, arch)
    ]
    # RTX 30 has the least shared memory of all: float32 of the most channels.
    least, _ = _portable(_SIZES[1], torch.float32, "sm_86")
    return [*portable, least, *_hopper()]


def _portable(size: Size, dtype: torch.dtype, arch: str) -> Iterator[CompileCase]:
    _, channels, num_hidden = size
    x, weights, kept = _given(size, dtype)
    launches: dict[str, Callable[[], Any]] = {
        "forward": partial(triton.forward, x, weights, x, kept),
        "hidden": partial(triton._hidden, x, x, *weights[2:5]),
    }
    for name, launch in launches.items():
        described = f"{name} C={channels} H={num_hidden} {str(dtype).removeprefix('torch.')} {arch}"
        yield recorded(triton, f"transition_{name}_kernel", launch, described, arch)


def _given(size: Size, dtype: torch.dtype) -> tuple[Tensor, Parameters, Kept]:
    rows, channels, num_hidden = size
    new = partial(empty, dtype=dtype)
    x, row, column = new(rows, channels), new(channels), new(num_hidden)
    up, down = new(num_hidden, channels), new(channels, num_hidden)
    kept = Kept(x, empty(2, rows, dtype=torch.float32))
    return x, Parameters(row, row, up, column, down, row), kept


def _hopper() -> Iterator[CompileCase]:
    """What the launches give to their kernels."""
    for size in _SIZES:
        rows, channels, num_hidden = size
        x, weights, kept = _given(size, torch.bfloat16)
        pieces = empty(rows * num_hidden // 64, 64)
        products, sums = empty(2, 8, num_hidden, channels).float(), empty(8, num_hidden).float()
        sums_over_rows = empty(2, 264, channels).float()
        launches: dict[str, tuple[str, Callable[[], Any]]] = {
            "transition_forward_hopper": ("forward", partial(hopper.forward, x, weights, x, None)),
            "transition_forward_hopper that keeps": (
                "forward",
                partial(hopper.forward, x, weights, x, kept),
            ),
            "transition_gradients_hopper": ("gradients", partial(hopper.gradients, x, x, weights)),
            "transition_input_hopper": (
                "input",
                partial(hopper.input_gradient, pieces, x, kept.stats, x, weights),
            ),
            "transition_finish": (
                "parameters",
                partial(hopper.finish, products, sums, sums_over_rows, weights),
            ),
        }
        for name, (place, launch) in launches.items():
            module = import_module(f"{hopper.__name__}.{place}")
            described = f"{name} C={channels} H={num_hidden}"
            yield recorded(module, f"{name.split()[0]}_kernel", launch, described, "sm_90")
