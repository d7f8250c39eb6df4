"""Configurations that the offline compilation checks."""

from __future__ import annotations

from typing import Any

import torch

from scalefold_kernels.compilation import CompileCase
from scalefold_kernels.tiles import Tile
from scalefold_kernels.triangle import kernel
from scalefold_kernels.triangle.sizes import Sizes, block

_FLOAT32 = {"mean", "reciprocal", "partial", "partial_bias", "share", "x"}
_NUMBERS = {"ROWS", "TOTAL", "COLUMNS", "LAST_ROWS", "PARTS", "SIZE", "P"}
_NUMBERS |= {"keep_b", "keep_i", "keep_j", "key_stride", "threshold", "D1", "D2", "D3"}
_KINDS = {"eps": "fp32", "factor": "fp32", "layer": "i32", "keep": "*u8:16", "key": "*i64:16"}
_VARIANTS: dict[str, dict[str, Any]] = {
    "projection_backward": {"HAS_THROUGH": True},
    "output_forward": {"HAS_DROPOUT": True, "keep_z": 1},
    "output_backward": {"HAS_DROPOUT": True, "keep_z": 1},
}


def compile_cases() -> list[CompileCase]:
    """Every kernel in bfloat16: for Evoformer, template block, and wider pairs."""
    found = []
    for arch in ("sm_80", "sm_90"):
        for pair, hidden in ((128, 128), (64, 64), (256, 48)):
            found += _cases(Sizes(256 * 256, pair, hidden, torch.bfloat16, arch))
    return found


def _cases(sizes: Sizes) -> list[CompileCase]:
    pair, hidden = sizes.pair, sizes.hidden
    found = []
    for name, whole, limit in (
        ("projection_forward", {"BLOCK_Z": block(pair)}, {"BLOCK_C": min(pair, hidden)}),
        ("projection_backward", {"BLOCK_Z": block(pair)}, {"BLOCK_C": min(pair, hidden)}),
        ("output_forward", {"BLOCK_C": block(hidden)}, {"BLOCK_Z": pair}),
        ("output_backward", {"BLOCK_C": block(hidden)}, {"BLOCK_Z": pair}),
    ):
        constants: dict[str, Any] = whole | sizes.constants() | _VARIANTS.get(name, {})
        found.append(
            _case(sizes, name, getattr(kernel, name), constants, sizes.tile(name, **limit))
        )
    for name, most_rows, columns in (
        ("projection_weights", max(pair, hidden), pair),
        ("output_weights", pair, hidden),
    ):
        tile = sizes.tile(name, BLOCK_R=most_rows, BLOCK_N=columns)
        del tile["PARTS"]
        found.append(_case(sizes, name, getattr(kernel, name), sizes.constants(), tile))
    constants = {"COLUMNS": pair, "BLOCK_N": block(pair)}
    tile = sizes.tile("finish_weights")
    found.append(_case(sizes, "finish_weights", kernel.finish_weights, constants, tile))
    for name in ("sum_rows", "dropout_mask"):
        found.append(_case(sizes, name, getattr(kernel, name), {}, sizes.tile(name)))
    return found


def _case(
    sizes: Sizes, name: str, compiled: Any, constants: dict[str, Any], tile: Tile
) -> CompileCase:
    names = ("num_warps", "num_stages", "maxnreg")
    options = {name: tile.pop(name) for name in names if name in tile}
    constants = constants | tile
    signature = {}
    for argument in compiled.arg_names:
        if argument in _KINDS:
            signature[argument] = _KINDS[argument]
        elif (
            argument in _NUMBERS
            or "_position" in argument
            or argument.endswith(("_row", "_column"))
        ):
            signature[argument] = "i32:16"
        else:
            signature[argument] = "*fp32:16" if argument in _FLOAT32 else "*bf16:16"
    return CompileCase(
        f"{name} Z={sizes.pair} C={sizes.hidden} {sizes.arch}",
        compiled,
        {name: kind for name, kind in signature.items() if name not in constants},
        constants,
        **options,
        architectures=(sizes.arch,),
    )
