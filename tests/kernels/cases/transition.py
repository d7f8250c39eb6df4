"""Configurations that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, recorded

from scalefold_kernels import tma
from scalefold_kernels.dot import precision
from scalefold_kernels.ops.transition import hopper
from scalefold_kernels.ops.transition.op import Kept, Parameters
from scalefold_kernels.ops.transition.triton import (
    transition_forward_kernel,
    transition_hidden_kernel,
)
from scalefold_kernels.tiles import tile

_POINTERS = {"bfloat16": "*bf16:16", "float32": "*fp32:16"}

# (rows, channels, hidden channels) of pair, MSA, extra MSA and template pair representation
_SIZES = [(65536, 128, 512), (32768, 256, 1024), (262144, 64, 256), (262144, 64, 128)]


def compile_cases() -> list[CompileCase]:
    """Every kernel at the model's sizes; each architecture with the tile that it would take."""
    portable = [
        make(size, dtype, arch)
        for size in _SIZES
        for dtype in _POINTERS
        for arch in ("sm_80", "sm_90")
        for make in (_forward, _hidden)
    ]
    # RTX 30 has the least shared memory of all: float32 of the most channels.
    return [*portable, _forward(_SIZES[1], "float32", "sm_86"), *_hopper()]


def _forward(size: tuple[int, int, int], dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("transition_forward", size, dtype, arch)
    pointers = ("x", "norm_weight", "norm_bias", "up", "up_bias", "down", "down_bias", "out")
    signature = {
        **{f"{name}_ptr": _POINTERS[dtype] for name in (*pointers, "normed")},
        "stats_ptr": "*fp32:16",
        **dict.fromkeys(("num_rows", "x_stride"), "i32:16"),
    }
    constexprs = {"EPS": 1e-5, "BLOCK_C": size[1], **_constants(size, dtype), **sizes}
    name = f"forward C={size[1]} H={size[2]} {dtype} {arch}"
    return CompileCase(
        name, transition_forward_kernel, signature, constexprs, *launch, architectures=(arch,)
    )


def _hidden(size: tuple[int, int, int], dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("transition_hidden", size, dtype, arch)
    pointers = ("normed", "up", "up_bias", "grad", "down", "hidden", "grad_hidden")
    signature = {
        **{f"{name}_ptr": _POINTERS[dtype] for name in pointers},
        **dict.fromkeys(("up_bias_sums_ptr", "down_bias_sums_ptr"), "*fp32:16"),
        **dict.fromkeys(("num_rows", "grad_stride"), "i32:16"),
    }
    constexprs = {**_constants(size, dtype), **sizes}
    name = f"hidden C={size[1]} H={size[2]} {dtype} {arch}"
    return CompileCase(
        name, transition_hidden_kernel, signature, constexprs, *launch, architectures=(arch,)
    )


def _hopper() -> Iterator[CompileCase]:
    """What the launches give to their kernels."""
    for size in _SIZES:
        rows, channels, num_hidden = size
        empty = partial(torch.empty, dtype=torch.bfloat16, device="meta")
        x, row, column = empty(rows, channels), empty(channels), empty(num_hidden)
        kept = Kept(x, empty(2, rows).float())
        up, down = empty(num_hidden, channels), empty(channels, num_hidden)
        pieces = empty(rows * num_hidden // 64, 64)
        weights = Parameters(row, row, up, column, down, row)
        products, sums = empty(2, 8, num_hidden, channels).float(), empty(8, num_hidden).float()
        row_sums = empty(2, 264, channels).float()
        launches: dict[str, tuple[str, Callable[[], Any]]] = {
            "forward": ("forward", partial(hopper.forward, x, weights, x, None)),
            "forward that keeps": ("forward", partial(hopper.forward, x, weights, x, kept)),
            "gradients": ("gradients", partial(hopper.gradients, x, x, weights)),
            "input_gradient": (
                "input",
                partial(hopper.input_gradient, pieces, x, kept.stats, x, weights),
            ),
            "transition_finish": (
                "parameters",
                partial(hopper.finish, products, sums, row_sums, weights),
            ),
        }
        modules = {
            name: import_module(f"{hopper.__name__}.{name}") for name, _ in launches.values()
        }
        # H100 and H200: 132 SMs.
        with (
            patch.object(tma, "num_sms", lambda _: 132),
            patch.object(modules["gradients"], "num_sms", lambda _: 132),
        ):
            for name, (module, launch) in launches.items():
                described = f"{name} on Hopper C={channels} H={num_hidden}"
                kernel = f"{name.split()[0]}_kernel"
                yield recorded(modules[module], kernel, launch, described, "sm_90")


def _constants(size: tuple[int, int, int], dtype: str) -> dict[str, int | str]:
    return {"C": size[1], "H": size[2], "PRECISION": precision(getattr(torch, dtype))}


def _tile(
    table: str, size: tuple[int, int, int], dtype: str, arch: str
) -> tuple[dict[str, int], tuple[int, int]]:
    """Block sizes; warps and stages."""
    rows, channels, num_hidden = size
    shape: dict[str, int | str] = {"rows": rows, "C": channels, "H": num_hidden, "dtype": dtype}
    sizes = tile(table, arch, shape)
    return sizes, (sizes.pop("num_warps"), sizes.pop("num_stages", 2))
