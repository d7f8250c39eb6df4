"""Launches of products of float32 matrices; below autograd. M rows, N columns, K summed."""

from __future__ import annotations

import triton
from torch import Tensor

from scalefold_kernels.tiles import architecture, tile
from scalefold_kernels.wide_linear.kernel import join_splits_kernel, product_kernel

_JOINED = 1024
"""Elements of a program that adds up parts."""


def product(
    a_MK: Tensor,
    b_KN: Tensor,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    passed: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """Matrix product plus bias (N,), then perhaps a ReLU.

    Parameters
    ----------
    passed : Tensor, shape (M, K), optional
        What a ReLU made: elements of a count only where it let one through.
    sums : Tensor, shape (M,), optional
        Gets the sums of a's rows.
    """
    (num_rows, depth), num_columns = a_MK.shape, b_KN.shape[1]
    out = a_MK.new_empty(num_rows, num_columns)
    if out.numel() == 0:
        return out
    order = "KN" if b_KN.stride(1) == 1 else "NK"  # of b in memory
    shape: dict[str, int | str] = {"M": num_rows, "N": num_columns, "K": depth, "order": order}
    sizes = tile("wide_linear", architecture(a_MK.device), shape)
    splits = sizes["SPLITS"] = 1 if sums is not None else sizes["SPLITS"]
    end = {"HAS_BIAS": bias is not None, "RELU": relu}
    whole = splits == 1
    parts = out if whole else a_MK.new_empty(splits, num_rows, num_columns)
    grid = (
        triton.cdiv(num_rows, sizes["BLOCK_M"]),
        triton.cdiv(num_columns, sizes["BLOCK_N"]),
        splits,
    )
    product_kernel[grid](
        a_MK,
        passed,
        b_KN,
        bias,
        parts,
        sums,
        num_rows,
        num_columns,
        depth,
        *a_MK.stride(),
        *((0, 0) if passed is None else passed.stride()),
        *b_KN.stride(),
        **(end if whole else dict.fromkeys(end, False)),
        **sizes,
    )
    if not whole:
        join(parts, bias, out, **end)
    return out


def join(
    parts_SMN: Tensor, bias: Tensor | None, out: Tensor, *, HAS_BIAS: bool, RELU: bool
) -> None:
    """Write the sum of a product's parts, and what ends it."""
    join_splits_kernel[(triton.cdiv(out.numel(), _JOINED),)](
        parts_SMN,
        bias,
        out,
        out.numel(),
        out.shape[-1],
        HAS_BIAS=HAS_BIAS,
        RELU=RELU,
        SPLITS=len(parts_SMN),
        BLOCK=_JOINED,
    )
