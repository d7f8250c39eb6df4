"""Configurations that the offline compilation checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.compilation import CompileCase, recorded
from scalefold_kernels.outer_product import hopper_launch, kernel
from scalefold_kernels.outer_product.launch import Sizes
from scalefold_kernels.tiles import tile

_MODEL = {"S": 128, "N": 256, "C": 32, "Z": 128}
_FEW, _MANY = _MODEL, {**_MODEL, "S": 1024}


def compile_cases() -> list[CompileCase]:
    """Every kernel at the model's sizes; each architecture with the tile that it would take."""
    portable = [
        make(dtype, arch)
        for dtype in ("bfloat16", "float32")
        for arch in ("sm_80", "sm_90")
        for make in (_forward, _backward, _weight, _project, _outer_gradient, _outer_weight)
    ]
    return [*portable, *_hopper()]


def _forward(dtype: str, arch: str) -> CompileCase:
    return _chained("forward", dtype, arch, "outer_product_forward")


def _backward(dtype: str, arch: str) -> CompileCase:
    return _chained("backward", dtype, arch, "outer_product_backward")


def _chained(name: str, dtype: str, arch: str, table: str) -> CompileCase:
    sizes, launch = _tile(table, arch, _FEW, dtype)
    mean = name == "forward"
    kind = _pointer(dtype)
    operands = dict.fromkeys(("first_ptr", "second_ptr", "third_ptr"), kind)
    strides = [
        *("first_stride_k", "first_stride_x", "second_stride_y", "second_stride_m"),
        *("third_stride_k", "out_stride_split", "out_stride_x", "out_stride_y"),
        *("third_stride_n", "count_stride_x", "z_stride_x", "z_stride_y"),
    ]
    lengths = [f"size_{axis}" for axis in "xymdnk"]
    signature = {
        **operands,
        "out_ptr": kind if mean else "*fp32:16",
        **({"count_ptr": "*fp32:16", "bias_ptr": kind, "z_ptr": kind} if mean else {}),
        **dict.fromkeys([*lengths, *strides, "k_per_split"], "i32:16"),
    }
    constexprs = {
        **dict.fromkeys(("first_stride_m", "second_stride_d", "third_stride_d"), 1),
        **dict.fromkeys(("out_stride_n", "count_stride_y", "z_stride_n"), 1),
        **({} if mean else dict.fromkeys(("count_ptr", "bias_ptr", "z_ptr"))),
        "EPS": 1e-3,
        "MEAN": mean,
        "PRECISION": _precision(dtype),
        "BLOCK_Y": max(1, sizes.pop("COLUMNS") // 32),
        "BLOCK_M": 128,
        "BLOCK_D": 32,
        "BLOCK_N": 128,
        **sizes,
    }
    return _case(name, dtype, arch, kernel.chained_products_kernel, signature, constexprs, launch)


def _weight(dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("outer_product_weight", arch, _FEW, dtype)
    kind = _pointer(dtype)
    strides = ["a_stride_i", "a_stride_c", "b_stride_s", "b_stride_j", "i_per_split"]
    signature = {
        **dict.fromkeys(("a_ptr", "b_ptr", "grad_ptr"), kind),
        "out_ptr": "*fp32:16",
        **dict.fromkeys([*(f"size_{axis}" for axis in "sijcz"), *strides], "i32:16"),
    }
    constexprs = {
        "a_stride_s": 1,
        "b_stride_d": 1,
        "PRECISION": _precision(dtype),
        "BLOCK_S": 128,
        "BLOCK_C": 32,
        "BLOCK_Z": 128,
        "BLOCK_D": max(1, sizes.pop("COLUMNS") // 32),
        **sizes,
    }
    function = kernel.weight_gradient_kernel
    return _case("weight gradient", dtype, arch, function, signature, constexprs, launch)


def _project(dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("outer_product_projection", arch, _MANY, dtype)
    kind = _pointer(dtype)
    signature = {
        **dict.fromkeys(("outer_ptr", "weight_ptr", "bias_ptr", "z_ptr", "out_ptr"), kind),
        "count_ptr": "*fp32:16",
        **dict.fromkeys(("size_j", "size_c", "size_z"), "i32:16"),
        **dict.fromkeys(("count_stride_i", "z_stride_i", "z_stride_j"), "i32:16"),
    }
    constexprs = {
        "count_stride_j": 1,
        "z_stride_z": 1,
        "EPS": 1e-3,
        "PRECISION": _precision(dtype),
        **sizes,
    }
    function = kernel.project_outer_kernel
    return _case("projection", dtype, arch, function, signature, constexprs, launch)


def _outer_gradient(dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("outer_product_projection_input", arch, _MANY, dtype)
    signature = {
        **dict.fromkeys(("grad_ptr", "weight_ptr", "out_ptr"), _pointer(dtype)),
        **dict.fromkeys(("size_j", "size_c", "size_z"), "i32:16"),
    }
    constexprs = {"PRECISION": _precision(dtype), "BLOCK_Z": 128, **sizes}
    function = kernel.outer_gradient_kernel
    return _case("outer gradient", dtype, arch, function, signature, constexprs, launch)


def _outer_weight(dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("outer_product_projection_weight", arch, _MANY, dtype)
    lengths = ["size_i", "size_j", "size_c", "size_z", "i_per_split"]
    signature = {
        **dict.fromkeys(("grad_ptr", "outer_ptr"), _pointer(dtype)),
        "out_ptr": "*fp32:16",
        **dict.fromkeys(lengths, "i32:16"),
    }
    constexprs = {"PRECISION": _precision(dtype), **sizes}
    function = kernel.outer_weight_gradient_kernel
    return _case("projection weight", dtype, arch, function, signature, constexprs, launch)


def _hopper() -> list[CompileCase]:
    """The model's size, one sample; what the launches give to their kernels."""
    num_seq, num_res, channels, pair_channels = _FEW.values()
    sizes = Sizes(*_FEW.values())

    def new(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    a_ICS, b_SJC = new(num_res, channels, num_seq), new(num_seq, num_res, channels)
    grad, bias = new(num_res, num_res, pair_channels), new(pair_channels)
    count = new(num_res, num_res, dtype=torch.float32)
    weight_ZCD = new(pair_channels, channels, channels)
    launches = {
        "forward": ("chained_products_kernel", lambda: hopper_launch.mean(
            a_ICS.permute(1, 0, 2), b_SJC.permute(1, 0, 2), weight_ZCD.permute(1, 2, 0),
            count, bias, grad, grad, sizes,
        )),
        "backward": ("chained_products_kernel", lambda: hopper_launch.operand_gradient(
            grad, weight_ZCD.permute(2, 0, 1), b_SJC.permute(1, 2, 0), sizes
        )),
    }  # fmt: skip
    return [
        recorded(hopper_launch, kernel, launch, f"{name} on Hopper", "sm_90")
        for name, (kernel, launch) in launches.items()
    ]


def _case(
    name: str,
    dtype: str,
    arch: str,
    function: Any,
    signature: dict[str, str],
    constexprs: dict[str, Any],
    launch: tuple[int, int],
) -> CompileCase:
    return CompileCase(
        f"{name} {dtype} {arch}", function, signature, constexprs, *launch, architectures=(arch,)
    )


def _tile(
    table: str, arch: str, shape: dict[str, int], dtype: str
) -> tuple[dict[str, int], tuple[int, int]]:
    """Block sizes; warps and stages."""
    sizes = tile(table, arch, {**shape, "dtype": dtype})
    sizes.pop("RESIDENT", None)
    return sizes, (sizes.pop("num_warps"), sizes.pop("num_stages"))


def _pointer(dtype: str) -> str:
    return {"bfloat16": "*bf16:16", "float32": "*fp32:16"}[dtype]


def _precision(dtype: str) -> str:
    return "ieee" if dtype == "float32" else "tf32"
