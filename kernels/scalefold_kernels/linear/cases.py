"""Configurations for the offline compilation: every rule of the tables, and the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton

from scalefold_kernels.compilation import CompileCase
from scalefold_kernels.linear.kernel import (
    residual_linear_backward_kernel,
    residual_linear_forward_kernel,
)
from scalefold_kernels.linear.portable import MAX_FUSED_GRADIENT
from scalefold_kernels.tiles import Shape, Tile, configured, read_table

_KERNELS = {
    "residual_linear_forward": residual_linear_forward_kernel,
    "residual_linear_backward": residual_linear_backward_kernel,
}

# Channels in and out: pair, templates, MSA.
_DEFAULTS = [(128, 128), (64, 64), (256, 256)]

_ALLOWED_SPILL_BYTES: dict[tuple[str, tuple[str, ...], int, int | None], int] = {
    ("residual_linear_backward", ("sm_90",), 128, 1): 8
}
"""Of the tile that was the fastest on an H200 nevertheless: 37 us, without spills 44."""


def compile_cases() -> list[CompileCase]:
    """Without dropout, and with masks shared by lines and by positions."""
    portable = [
        _case(table, archs, shape, tile, shared)
        for table in _KERNELS
        for archs, shape, tile in _settings(table)
        if table == "residual_linear_forward"
        or int(shape["C"]) * int(shape["K"]) <= MAX_FUSED_GRADIENT
        for shared in (None, 1, 2)
    ]
    # Imported here: the kernels for Hopper are for one Triton.
    from scalefold_kernels.linear.hopper_cases import compile_cases as hopper_cases

    return [*portable, *hopper_cases()]


def _settings(table: str) -> Iterator[tuple[tuple[str, ...], Shape, Tile]]:
    for arch, shape, tile in configured(table):
        yield (arch,), shape, tile
    for inputs, channels in _DEFAULTS:
        yield ("sm_80", "sm_90"), {"K": inputs, "C": channels}, read_table(table)["default"]


def _case(
    table: str, archs: tuple[str, ...], shape: Shape, tile: Tile, shared: int | None
) -> CompileCase:
    kernel, inputs, channels = _KERNELS[table], int(shape["K"]), int(shape["C"])
    launch: dict[str, Any] = dict(tile)
    del launch["PROGRAMS"]
    warps = {"num_warps": launch.pop("num_warps")}
    launch = {"BLOCK_K": inputs, "BLOCK_C": channels, **launch}
    for block, size in (("BLOCK_K", inputs), ("BLOCK_C", channels)):
        launch[block] = max(16, triton.next_power_of_2(min(launch[block], size)))
    constexprs = {
        "K": inputs, "C": channels, "DIMS": 3, "SHARED": shared or 0,
        "PRECISION": "tf32", "key_stride": 1, **launch,
    }  # fmt: skip
    pointers = {n: "*bf16:16" for n in kernel.arg_names if n.endswith("_ptr")}
    pointers |= {"key_ptr": "*i64:16"} | (
        {"partial_ptr": "*fp32:16"} if "partial_ptr" in pointers else {}
    )
    if shared is None:
        del pointers["key_ptr"]
        constexprs["key_ptr"] = None
    numbers = {
        "layer": "i32",
        "threshold": "i32:16",
        "scale": "fp32",
        "size1": "i32",
        "size2": "i32",
    }
    dropout = "no dropout" if shared is None else f"shared {shared}"
    name = f"{table} {'/'.join(archs)} K={inputs} C={channels}, {dropout}, {tile}"
    return CompileCase(
        name,
        kernel,
        pointers | numbers,
        constexprs,
        architectures=archs,
        allowed_spill_bytes=_ALLOWED_SPILL_BYTES.get((table, archs, inputs, shared), 0),
        **warps,
    )
