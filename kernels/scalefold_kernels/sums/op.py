"""Launches of the sums over rows; below autograd."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
from torch import Tensor

from scalefold_kernels.sums.kernel import (
    column_sums_kernel,
    sum_partials_kernel,
    sum_several_kernel,
)
from scalefold_kernels.tiles import architecture, tile


def sum_rows(parts_PW: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Sum of a contiguous float32 matrix over its rows, in ``out`` (W elements) if it is given."""
    num_parts, width = parts_PW.shape
    if out is None:
        out = torch.empty(width, dtype=dtype, device=parts_PW.device)
    launch = _tile("sum_partials", parts_PW)
    sum_partials_kernel[(triton.cdiv(width, launch["BLOCK_W"]),)](
        parts_PW, out, num_parts, width, **launch
    )
    return out


def sum_several(matrices: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """`sum_rows` of several matrices, each into its ``out``, in one launch."""
    tiles = [_tile("sum_several", parts_PW) for parts_PW in matrices]
    widths = tuple(parts_PW.shape[1] for parts_PW in matrices)
    blocks = [triton.cdiv(w, tile["BLOCK_W"]) for w, tile in zip(widths, tiles, strict=True)]
    sum_several_kernel[(sum(blocks),)](
        tuple(matrices),
        tuple(outs),
        tuple(map(len, matrices)),
        widths,
        tuple(accumulate(blocks)),
        BLOCKS_P=tuple(tile["BLOCK_P"] for tile in tiles),
        BLOCKS_W=tuple(tile["BLOCK_W"] for tile in tiles),
        num_warps=4,
    )


def _tile(table: str, parts_PW: Tensor) -> dict[str, int]:
    num_parts, width = parts_PW.shape
    return tile(table, architecture(parts_PW.device), {"partials": num_parts, "width": width})


def column_sums(x_RW: Tensor, out: Tensor) -> None:
    """Sum a matrix with rows of any stride over its rows, into ``out``."""
    num_rows, num_columns = x_RW.shape
    shape: dict[str, int | str] = {"rows": num_rows, "columns": num_columns}
    launch = tile("column_sums", architecture(x_RW.device), shape)
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(num_rows, launch["BLOCK_R"]))
    partial = torch.empty(programs, num_columns, dtype=torch.float32, device=x_RW.device)
    column_sums_kernel[(triton.cdiv(num_columns, launch["BLOCK_C"]), programs)](
        x_RW, partial, num_rows, num_columns, x_RW.stride(0), PROGRAMS=programs, **launch
    )
    sum_rows(partial, out.dtype, out)
