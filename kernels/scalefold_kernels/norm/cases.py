"""Configurations for the offline compilation: every rule of the tables, and the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import triton

from scalefold_kernels.compilation import CompileCase
from scalefold_kernels.norm import kernel as kernels
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.norm.projection import kernel as projections
from scalefold_kernels.norm.projection.arguments import MAX_FEW_OUTPUTS, MAX_NARROW_OUTPUTS
from scalefold_kernels.tiles import Shape, Tile, configured, read_table

_KINDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_BOTH = ("sm_80", "sm_90")

# What the defaults are compiled for: channels, outputs, type.
_DEFAULT_NORMS = [(32, "float32"), (128, "bfloat16"), (384, "bfloat16"), (1024, "bfloat16")]
_DEFAULT_PROJECTIONS = [(64, 64, "bfloat16"), (128, 4, "bfloat16"), (128, 512, "bfloat16")]


def compile_cases() -> list[CompileCase]:
    """All kernels of the folder."""
    # Imported here: the kernels for Hopper are for one Triton.
    from scalefold_kernels.norm.projection.hopper_cases import compile_cases as hopper_cases

    return [*_norms(), *_projections(), *hopper_cases()]


def _norms() -> Iterator[CompileCase]:
    for table in ("layer_norm_forward", "layer_norm_backward"):
        for archs, shape, tile in _settings(table, ["C", "dtype"], _DEFAULT_NORMS):
            channels, kind = int(shape["C"]), _KINDS[str(shape["dtype"])]
            launch = dict(tile)
            elements = launch.pop("ELEMENTS")
            block_c = triton.next_power_of_2(channels)
            blocks = {"BLOCK_R": max(1, elements // block_c), "BLOCK_C": block_c}
            if table == "layer_norm_forward":
                pointers = ["x_ptr", "weight_ptr", "bias_ptr", "out_ptr"]
                kernel = kernels.layer_norm_forward_kernel
                yield _case(table, kernel, archs, shape, pointers, kind, launch | blocks)
                continue
            kernel = kernels.layer_norm_backward_kernel
            pointers = ["grad_ptr", "x_ptr", "weight_ptr", "bias_ptr", "grad_x_ptr"]
            pointers += ["through_ptr", "normed_ptr", "others_ptr"]
            geometry = {"GRAD_ROW_DIMS": 1, "grad_stride_c": 1}
            more = launch | blocks | geometry
            yield _case(f"{table} with sums", kernel, archs, shape, pointers, kind, more)
            more |= {"others_ptr": None}
            yield _case(table, kernel, archs, shape, pointers, kind, more)
            bare = more | {"bias_ptr": None, "through_ptr": None, "normed_ptr": None}
            yield _case(f"{table} alone", kernel, archs, shape, pointers, kind, bare)


def _projections() -> Iterator[CompileCase]:
    names = ["C", "P", "dtype"]
    parameters = ["norm_weight_ptr", "norm_bias_ptr", "weight_ptr"]
    for archs, shape, tile in _settings("projection_forward", names, _DEFAULT_PROJECTIONS):
        kind = _KINDS[str(shape["dtype"])]
        pointers = ["x_ptr", *parameters, "bias_ptr", "out_ptr"]
        kernel = projections.projection_forward_kernel
        more = tile | _products(shape) | {"BLOCK_S": MAX_FEW_OUTPUTS}
        alone = more | {"aside_weight_ptr": None, "aside_ptr": None}
        yield _case("projection_forward", kernel, archs, shape, pointers, kind, alone)
        few = int(shape["P"]) <= MAX_FEW_OUTPUTS
        if few or int(shape["P"]) > MAX_NARROW_OUTPUTS:
            pointers += ["aside_weight_ptr", "aside_ptr"]
            more |= {"CHUNKS": 0} if few else {}
            yield _case("projection_forward aside", kernel, archs, shape, pointers, kind, more)
    narrow = [d for d in _DEFAULT_PROJECTIONS if d[1] <= MAX_NARROW_OUTPUTS]
    for archs, shape, tile in _settings("projection_backward", names, narrow):
        kind = _KINDS[str(shape["dtype"])]
        pointers = ["grad_ptr", "x_ptr", *parameters, "through_ptr", "grad_x_ptr"]
        more = {"BLOCK_P": max(16, triton.next_power_of_2(int(shape["P"])))}
        more |= {"GRAD_ROW_DIMS": 1, "grad_stride_c": 1}
        if shape.get("others", 0):
            pointers += ["grad_normed_ptr", "normed_ptr"]
        else:
            more |= {"grad_normed_ptr": None, "normed_ptr": None}
        kernel = projections.projection_backward_kernel
        more |= tile | _products(shape)
        yield _case("projection_backward", kernel, archs, shape, pointers, kind, more)


def _products(shape: Shape) -> dict[str, Any]:
    ieee = shape["dtype"] == "float32"
    return {
        "PRECISION": "ieee" if ieee else "tf32",
        "BLOCK_C": max(16, triton.next_power_of_2(int(shape["C"]))),
    }


def _settings(
    table: str, names: Sequence[str], defaults: Sequence[tuple[int | str, ...]]
) -> Iterator[tuple[tuple[str, ...], Shape, Tile]]:
    for arch, shape, tile in configured(table):
        yield (arch,), {"C": 256, "dtype": "bfloat16", **shape}, tile
    for values in defaults:
        yield _BOTH, dict(zip(names, values, strict=True)), read_table(table)["default"]


def _case(
    name: str,
    kernel: Any,
    architectures: tuple[str, ...],
    shape: Shape,
    pointers: list[str],
    kind: str,
    constexprs: dict[str, Any],
) -> CompileCase:
    """A launch on contiguous rows, of any number; outputs are divisible by 16 where P is."""
    launch = {k: constexprs[k] for k in ("num_warps", "num_stages") if k in constexprs}
    given = {"C": shape.get("C"), "EPS": EPS, "ROW_DIMS": 1, "stride_c": 1, **constexprs}
    given = {k: v for k, v in given.items() if k in kernel.arg_names}
    signature = {n: f"*{kind}:16" for n in pointers if n not in given}
    signature |= {n: "*fp32:16" for n in kernel.arg_names if n in ("partial_ptr", "stats_ptr")}
    rest = [n for n in kernel.arg_names if n not in given and n not in signature]
    even = [n for n in rest if "stride" in n]
    even += ["num_outputs", "first_biased"] if int(shape.get("P", 1)) % 16 == 0 else []
    signature |= {n: "i32:16" if n in even else "i32" for n in rest}
    described = ", ".join(f"{k}={v}" for k, v in {**shape, **constexprs}.items())
    return CompileCase(
        f"{name} {described}", kernel, signature, given, architectures=architectures, **launch
    )
