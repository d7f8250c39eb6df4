"""Partial sums of a kernel's programs, added up in a fixed order."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.norm.kernel import sum_partials_kernel
from scalefold_kernels.tiles import architecture, tile


def sum_rows(parts_PW: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum of a contiguous float32 matrix over its rows, shape (W,)."""
    num_parts, width = parts_PW.shape
    out = torch.empty(width, dtype=dtype, device=parts_PW.device)
    shape: dict[str, int | str] = {"partials": num_parts, "width": width}
    launch = tile("sum_partials", architecture(parts_PW.device), shape)
    sum_partials_kernel[(triton.cdiv(width, launch["BLOCK_W"]),)](
        parts_PW, out, num_parts, width, **launch
    )
    return out
