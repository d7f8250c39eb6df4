"""Launches of the sums over rows; below autograd."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.sums.kernel import column_sums_kernel, sum_partials_kernel
from scalefold_kernels.tiles import architecture, tile


def sum_rows(parts_PW: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Sum of a contiguous float32 matrix over its rows, in ``out`` (W elements) if it is given."""
    num_parts, width = parts_PW.shape
    if out is None:
        out = torch.empty(width, dtype=dtype, device=parts_PW.device)
    shape: dict[str, int | str] = {"partials": num_parts, "width": width}
    launch = tile("sum_partials", architecture(parts_PW.device), shape)
    sum_partials_kernel[(triton.cdiv(width, launch["BLOCK_W"]),)](
        parts_PW, out, num_parts, width, **launch
    )
    return out


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
