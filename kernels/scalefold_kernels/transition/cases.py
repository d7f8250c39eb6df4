"""Configurations that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch

from scalefold_kernels.compilation import CompileCase, recorded
from scalefold_kernels.tiles import tile
from scalefold_kernels.transition import hopper_launch
from scalefold_kernels.transition.arguments import Parameters
from scalefold_kernels.transition.kernel import (
    transition_finish_kernel,
    transition_forward_kernel,
    transition_hidden_kernel,
)

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
    return [*portable, *_hopper()]


def _forward(size: tuple[int, int, int], dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("transition_forward", size, dtype, arch)
    pointers = ("x", "norm_weight", "norm_bias", "up", "up_bias", "down", "down_bias", "out")
    signature = {
        **{f"{name}_ptr": _POINTERS[dtype] for name in pointers},
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
    for size in _SIZES:
        rows, channels, num_hidden = size
        x, up, down, row, column = (
            torch.empty(shape, dtype=torch.bfloat16, device="meta")
            for shape in (
                (rows, channels),
                (num_hidden, channels),
                (channels, num_hidden),
                (channels,),
                (num_hidden,),
            )
        )
        parameters = Parameters(row, row, up, column, down, row)
        described = f"on Hopper C={channels} H={num_hidden}"
        # H100 and H200: 132 multiprocessors.
        with patch.object(hopper_launch, "_multiprocessors", lambda _: 132):
            cases = [
                recorded(
                    hopper_launch,
                    "forward_kernel",
                    partial(hopper_launch.forward, x, parameters, x),
                    f"forward {described}",
                    "sm_90",
                ),
                recorded(
                    hopper_launch,
                    "backward_kernel",
                    partial(hopper_launch.backward_rows, x, x, parameters),
                    f"backward {described}",
                    "sm_90",
                ),
            ]
        for case in cases:
            # Of what a tile needs once; the loop over hidden channels has registers enough.
            yield replace(case, allowed_spill_bytes=160)
        yield _finish(size)


def _finish(size: tuple[int, int, int]) -> CompileCase:
    sizes, launch = _tile("transition_finish", size, "bfloat16", "sm_90")
    narrow = ("up", "norm_weight", "norm_bias", "grad_up", "grad_norm")
    signature = {
        **dict.fromkeys(("raw_ptr", "sums_ptr"), "*fp32:16"),
        **{f"{name}_ptr": "*bf16:16" for name in (*narrow, "grad_up_bias", "grad_down_bias")},
    }
    constexprs = {"C": size[1], "H": size[2], **sizes}
    name = f"finish C={size[1]} H={size[2]}"
    return CompileCase(
        name, transition_finish_kernel, signature, constexprs, *launch, architectures=("sm_90",)
    )


def _constants(size: tuple[int, int, int], dtype: str) -> dict[str, int | str]:
    precision = "ieee" if dtype == "float32" else "tf32"
    return {"C": size[1], "H": size[2], "PRECISION": precision}


def _tile(
    table: str, size: tuple[int, int, int], dtype: str, arch: str
) -> tuple[dict[str, int], tuple[int, int]]:
    """Block sizes; warps and stages."""
    rows, channels, num_hidden = size
    shape: dict[str, int | str] = {"rows": rows, "C": channels, "H": num_hidden, "dtype": dtype}
    sizes = tile(table, arch, shape)
    return sizes, (sizes.pop("num_warps"), sizes.pop("num_stages", 2))
