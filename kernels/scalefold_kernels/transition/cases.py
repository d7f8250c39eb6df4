"""Configurations that the offline compilation checks."""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl

from scalefold_kernels.compilation import CompileCase
from scalefold_kernels.tiles import tile
from scalefold_kernels.transition.hopper.backward import backward_kernel
from scalefold_kernels.transition.hopper.forward import forward_kernel
from scalefold_kernels.transition.hopper.parts import ROWS
from scalefold_kernels.transition.hopper_launch import MAX_BACKWARD_CHANNELS
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
    hopper = [_hopper_forward(size) for size in _SIZES]
    backward = [
        make(size)
        for size in _SIZES
        if size[1] <= MAX_BACKWARD_CHANNELS
        for make in (_hopper_backward, _finish)
    ]
    return portable + hopper + backward


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


def _hopper_forward(size: tuple[int, int, int]) -> CompileCase:
    sizes, launch = _tile("transition_forward_hopper", size, "bfloat16", "sm_90")
    block = sizes["BLOCK_H"]
    signature = {
        **dict.fromkeys(("x_desc", "out_desc"), _tiles(ROWS.value, size[1])),
        "up_desc": _tiles(block, size[1]),
        "down_desc": _tiles(size[1], block),
        **dict.fromkeys(("norm_weight", "norm_bias", "up_bias", "down_bias"), "*bf16:16"),
        "num_tiles": "i32",
    }
    return _hopper_case("forward", size, forward_kernel, signature, sizes, launch)


def _hopper_backward(size: tuple[int, int, int]) -> CompileCase:
    sizes, launch = _tile("transition_backward_hopper", size, "bfloat16", "sm_90")
    block = sizes["BLOCK_H"]
    rows = "x_desc", "grad_desc", "x_hat_desc", "grad_x_desc"
    signature = {
        **dict.fromkeys(rows, _tiles(ROWS.value, size[1])),
        **dict.fromkeys(("hidden_desc", "grad_hidden_desc"), _tiles(ROWS.value, block)),
        "up_desc": _tiles(block, size[1]),
        "down_desc": _tiles(size[1], block),
        **dict.fromkeys(("norm_weight", "norm_bias", "up_bias"), "*bf16:16"),
        "sums": "*fp32:16",
        "num_tiles": "i32",
    }
    return _hopper_case("backward", size, backward_kernel, signature, sizes, launch)


def _hopper_case(
    name: str,
    size: tuple[int, int, int],
    function: Any,
    signature: dict[str, str],
    sizes: dict[str, int],
    launch: tuple[int, int],
) -> CompileCase:
    constexprs = {"C": size[1], "H": size[2], "EPS": 1e-5, "BLOCK_C": size[1], **sizes}
    described = f"{name} on Hopper C={size[1]} H={size[2]}"
    return CompileCase(
        described, function, signature, constexprs, *launch, architectures=("sm_90",)
    )


def _tiles(rows: int, columns: int) -> str:
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
    return f"tensordesc<bf16{[rows, columns]},{layout!r}>"


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
