"""Launches of products of float32 matrices; below autograd. M rows, N columns, K summed."""

from __future__ import annotations

from collections.abc import Sequence

import triton
from torch import Tensor

from scalefold_kernels.limits import needs_int64
from scalefold_kernels.sums import sum_several
from scalefold_kernels.tiles import architecture, tile
from scalefold_kernels.wide_linear.kernel import (
    gradients_kernel,
    join_splits_kernel,
    product_kernel,
)

_JOINED = 1024
"""Elements of a program that adds up parts."""


def product(
    a_MK: Tensor,
    b_KN: Tensor,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    passed: Tensor | None = None,
) -> Tensor:
    """Matrix product plus bias (N,), then perhaps a ReLU.

    Parameters
    ----------
    passed : Tensor, shape (M, K), optional
        What a ReLU made: elements of a count only where it let one through.
    """
    (num_rows, depth), num_columns = a_MK.shape, b_KN.shape[1]
    out = a_MK.new_empty(num_rows, num_columns)
    if out.numel() == 0:
        return out
    order = "KN" if b_KN.stride(1) == 1 else "NK"  # of b in memory
    shape: dict[str, int | str] = {"M": num_rows, "N": num_columns, "K": depth, "order": order}
    sizes = tile("wide_linear", architecture(a_MK.device), shape)
    splits = sizes["SPLITS"]
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
        num_rows,
        num_columns,
        depth,
        *a_MK.stride(),
        *((0, 0) if passed is None else passed.stride()),
        *b_KN.stride(),
        **(end if whole else dict.fromkeys(end, False)),
        INT64=needs_int64(a_MK, passed, b_KN, parts),
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
        INT64=needs_int64(parts_SMN),
        SPLITS=len(parts_SMN),
        BLOCK=_JOINED,
    )


def gradients(
    grads_RC: Sequence[Tensor], passed_RC: Sequence[Tensor], rows_RK: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of weight (C, K) and bias (C,); all arguments are contiguous.

    ``passed``: what the ReLUs made; empty without one.
    """
    (num_rows, outputs), inputs = grads_RC[0].shape, rows_RK[0].shape[1]
    weight, bias = grads_RC[0].new_empty(outputs, inputs), grads_RC[0].new_empty(outputs)
    if num_rows == 0:
        return weight.zero_(), bias.zero_()
    shape: dict[str, int | str] = {"C": outputs, "K": inputs, "rows": num_rows * len(rows_RK)}
    sizes = tile("wide_linear_gradients", architecture(weight.device), shape)
    splits = sizes["SPLITS"]
    whole = splits == 1
    parts = weight if whole else weight.new_empty(splits, outputs, inputs)
    parts_bias = bias if whole else bias.new_empty(splits, outputs)
    grid = triton.cdiv(outputs, sizes["BLOCK_M"]), triton.cdiv(inputs, sizes["BLOCK_N"]), splits
    gradients_kernel[grid](
        tuple(grads_RC),
        tuple(passed_RC),
        tuple(rows_RK),
        parts,
        parts_bias,
        num_rows,
        outputs,
        inputs,
        RELU=bool(passed_RC),
        INT64=needs_int64(grads_RC[0], rows_RK[0], parts),
        **sizes,
    )
    if not whole:
        sum_several([parts.flatten(1), parts_bias], [weight, bias])
    return weight, bias
