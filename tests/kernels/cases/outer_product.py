"""Configurations that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, Signature, recorded
from torch import Tensor

from scalefold_kernels import tma
from scalefold_kernels.dot import precision
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.outer_product import hopper_launch, kernel
from scalefold_kernels.outer_product import launch as products
from scalefold_kernels.outer_product.launch import Chain, Mean, Sizes
from scalefold_kernels.outer_product.materialised import kernel as materialised
from scalefold_kernels.outer_product.operands import hopper_launch as operands_hopper
from scalefold_kernels.outer_product.operands import kernel as operands
from scalefold_kernels.outer_product.operands.launch import Parameters
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
    of_operands = [
        _operands(name, function, channels, arch)
        for channels in (64, 256)
        for arch in ("sm_80", "sm_90")
        for name, function in (
            ("forward", operands.forward_kernel),
            ("backward", operands.backward_kernel),
        )
    ]
    return [*portable, *of_operands, *_around(), *_hopper(), *_hopper_operands()]


def _forward(dtype: str, arch: str) -> CompileCase:
    return _chained("forward", dtype, arch, "outer_product_forward")


def _backward(dtype: str, arch: str) -> CompileCase:
    return _chained("backward", dtype, arch, "outer_product_backward")


def _chained(name: str, dtype: str, arch: str, table: str) -> CompileCase:
    sizes, launch = _tile(table, arch, _FEW, dtype)
    mean = name == "forward"
    unit = ("second_stride_m", "third_stride_d") if mean else ("second_stride_d", "third_stride_n")
    kind = _pointer(dtype)
    operands = dict.fromkeys(("first_ptr", "second_ptr", "third_ptr"), kind)
    strides = [
        *("first_stride_k", "first_stride_x", "second_stride_y", "third_stride_k"),
        *(f"second_stride_{'d' if mean else 'm'}", f"third_stride_{'n' if mean else 'd'}"),
        *("out_stride_split", "out_stride_x", "out_stride_y"),
        *("count_stride_x", "z_stride_x", "z_stride_y"),
    ]
    lengths = [f"size_{axis}" for axis in "xymdnk"]
    signature = {
        **operands,
        "out_ptr": kind if mean else "*fp32:16",
        **({"count_ptr": "*fp32:16", "bias_ptr": kind, "z_ptr": kind} if mean else {}),
        **dict.fromkeys([*lengths, *strides, "k_per_split"], "i32:16"),
    }
    constexprs = {
        "first_stride_m": 1,
        **dict.fromkeys(unit, 1),
        **dict.fromkeys(("out_stride_n", "count_stride_y", "z_stride_n"), 1),
        **({} if mean else dict.fromkeys(("count_ptr", "bias_ptr", "z_ptr"))),
        "EPS": 1e-3,
        "INT64": False,
        "MEAN": mean,
        "PRECISION": precision(getattr(torch, dtype)),
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
    strides = ["a_stride_i", "a_stride_c", "b_stride_j", "b_stride_d", "j_per_split"]
    signature = {
        **dict.fromkeys(("a_ptr", "b_ptr", "grad_ptr"), kind),
        "out_ptr": "*fp32:16",
        **dict.fromkeys([*(f"size_{axis}" for axis in "sijcz"), *strides], "i32:16"),
    }
    constexprs = {
        **dict.fromkeys(("a_stride_s", "b_stride_s"), 1),
        "PRECISION": precision(getattr(torch, dtype)),
        "BLOCK_S": 128,
        "BLOCK_D": 32,
        "BLOCK_Z": 128,
        "BLOCK_C": max(1, sizes.pop("COLUMNS") // 32),
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
        "INT64": False,
        "PRECISION": precision(getattr(torch, dtype)),
        **sizes,
    }
    function = materialised.project_outer_kernel
    return _case("projection", dtype, arch, function, signature, constexprs, launch)


def _outer_gradient(dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("outer_product_projection_input", arch, _MANY, dtype)
    signature = {
        **dict.fromkeys(("grad_ptr", "weight_ptr", "out_ptr"), _pointer(dtype)),
        **dict.fromkeys(("size_j", "size_c", "size_z"), "i32:16"),
    }
    constexprs = {"PRECISION": precision(getattr(torch, dtype)), "BLOCK_Z": 128, **sizes}
    function = materialised.outer_gradient_kernel
    return _case("outer gradient", dtype, arch, function, signature, constexprs, launch)


def _outer_weight(dtype: str, arch: str) -> CompileCase:
    sizes, launch = _tile("outer_product_projection_weight", arch, _MANY, dtype)
    lengths = ["size_i", "size_j", "size_c", "size_z", "i_per_split"]
    signature = {
        **dict.fromkeys(("grad_ptr", "outer_ptr"), _pointer(dtype)),
        "out_ptr": "*fp32:16",
        **dict.fromkeys(lengths, "i32:16"),
    }
    constexprs = {"PRECISION": precision(getattr(torch, dtype)), **sizes}
    function = materialised.outer_weight_gradient_kernel
    return _case("projection weight", dtype, arch, function, signature, constexprs, launch)


def _operands(name: str, function: Any, channels: int, arch: str) -> CompileCase:
    shape: dict[str, int | str] = {"C": 32, "M": channels, "dtype": "bfloat16"}
    tiles = tile(f"outer_product_operands_{name}", arch, shape)
    launch = tiles.pop("num_warps"), tiles.pop("num_stages", 3)
    constexprs: dict[str, Any] = {
        "M": channels,
        "EPS": EPS,
        "PRECISION": "tf32",
        "BLOCK_S": max(16, tiles.pop("ELEMENTS") // channels),
        "BLOCK_C": 32,
        "BLOCK_M": channels,
        **tiles,
    }
    narrow, wide = "*bf16:16", "*fp32:16"
    whole = "i32:16"
    types: dict[str, Signature] = {
        **dict.fromkeys(("mask_ptr", "partial_ptr"), wide),
        "sizes": (whole, whole, whole, whole),
        "strides": (whole, whole, whole, "=1"),
        "mask_strides": (whole, whole, "=1"),
    }
    signature = {
        argument: types.get(argument, narrow if argument.endswith("_ptr") else whole)
        for argument in function.arg_names
        if argument not in constexprs
    }
    label = f"operands {name} M={channels}"
    return _case(label, "bfloat16", arch, function, signature, constexprs, launch)


def _around() -> Iterator[CompileCase]:
    """What goes before and after products and operands' kernels, those for Hopper too."""
    new = partial(torch.empty, dtype=torch.bfloat16, device="meta")
    count, grad = new(256, 256, dtype=torch.float32), new(256, 256, 128)
    for arch in ("sm_80", "sm_90"):
        launch = partial(products.mean_gradient, grad, count)
        yield recorded(products, "mean_gradient_kernel", launch, f"mean gradient {arch}", arch)
        for channels in (64, 256):
            kinds = {"sums_ptr": "*fp32:16", "size_c": "i32:16"}
            constexprs = {"M": channels, "BLOCK_C": 32, "BLOCK_M": 16}
            signature = {
                name: kinds.get(name, "*bf16:16")
                for name in operands.parameters_kernel.arg_names
                if name not in constexprs
            }
            yield CompileCase(
                f"operands parameters M={channels} {arch}",
                operands.parameters_kernel,
                signature,
                constexprs,
                architectures=(arch,),
            )


def _hopper() -> list[CompileCase]:
    """The model's size, one sample; what the launches give to their kernels."""
    num_seq, num_res, channels, pair_channels = _FEW.values()
    sizes = Sizes(*_FEW.values())

    def new(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    a_ICS, b_JCS = (new(num_res, channels, num_seq) for _ in range(2))
    grad, bias = new(num_res, num_res, pair_channels), new(pair_channels)
    count = new(num_res, num_res, dtype=torch.float32)
    weight_ZCD = new(pair_channels, channels, channels)
    mean = Mean(count, bias, grad, grad)
    forward = Chain(a_ICS.transpose(0, 1), b_JCS.transpose(1, 2), weight_ZCD.permute(1, 2, 0))
    backward = (
        Chain(grad.transpose(0, 1), weight_ZCD.transpose(0, 1), b_JCS),
        Chain(grad, weight_ZCD.permute(2, 0, 1), a_ICS),
    )
    launches = {
        "forward": ("chained_products_kernel", lambda: hopper_launch.mean(forward, mean, sizes)),
        "backward": (
            "chained_products_kernel",
            lambda: hopper_launch.operand_gradients(backward, sizes),
        ),
        "weight gradient": (
            "weight_gradient_kernel",
            lambda: hopper_launch.weight_gradient(grad, a_ICS, b_JCS, sizes),
        ),
    }
    return [
        recorded(hopper_launch, kernel, launch, f"{name} on Hopper", "sm_90")
        for name, (kernel, launch) in launches.items()
    ]


def _hopper_operands() -> Iterator[CompileCase]:
    """Of the MSA and the extra MSA, and of a width that is no power of two."""
    new = partial(torch.empty, dtype=torch.bfloat16, device="meta")
    for num_seq, channels in ((128, 256), (1024, 64), (120, 200)):
        m, grad = new(1, num_seq, 256, channels), new(2, 1, 256, 32, num_seq)
        mask, row, column = new(1, num_seq, 256, dtype=torch.float32), new(channels), new(32)
        weight = new(32, channels)
        parameters = Parameters(row, row, weight, column, weight, column)
        launches: dict[str, Callable[[], Any]] = {
            "forward": partial(operands_hopper.forward, m, mask, parameters, grad),
            "backward": partial(
                operands_hopper.partial_sums, grad, m, mask, row, (weight, weight), m, m
            ),
        }
        with patch.object(tma, "num_sms", lambda _: 132):
            for name, launch in launches.items():
                described = f"operands {name} on Hopper M={channels}"
                kernel = f"{name}_hopper_kernel"
                yield recorded(operands_hopper, kernel, launch, described, "sm_90")


def _case(
    name: str,
    dtype: str,
    arch: str,
    function: Any,
    signature: Mapping[str, Signature],
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
