"""Gradients of a normalisation and of projections after it, from sums over rows.

With G the sum over rows of gradient x x_hat, and g that of the gradient, a projection of
``x_hat * norm_weight + norm_bias`` has the weight gradient G * norm_weight + g norm_bias^T. The
normalisation's own gradients are the column sums of W * G and of W * g.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block
from scalefold_kernels.loads import load_matrix, load_vector
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import config_for


@triton.jit
def finish_weights_kernel(
    partial_ptr, partial_bias_ptr, norm_weight_ptr, norm_bias_ptr, weights, flat_grad_ptr,
    share_ptr, num_parts, total, num_rows, last_rows, COLUMNS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the parts up, and apply the normalisation's weight and bias; see the module.

    A matrix has ``num_rows`` rows, the last one ``last_rows``. ``flat_grad``: of the norm's weight
    and bias (left to `sum_rows`), then of each matrix and its bias. ``share`` (CTAs, 2, COLUMNS):
    what each CTA's rows give to the first two. The grid is rows, matrices, columns.
    """
    matrix = tl.program_id(1)
    weight = weights[0]
    for n in tl.static_range(1, len(weights)):
        weight = tl.where(matrix == n, weights[n], weight)
    rows = tl.where(matrix == tl.num_programs(1) - 1, last_rows, num_rows)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row[:, None] < rows) & (column[None, :] < COLUMNS)
    product = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    grad_bias = tl.zeros((BLOCK_R,), tl.float32)
    place = matrix * num_rows + row
    offset = place[:, None] * COLUMNS + column[None, :]
    for first in range(0, num_parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)
        at = partial_ptr + part[:, None, None] * total * COLUMNS + offset[None, :, :]
        there = (part < num_parts)[:, None, None] & inside[None, :, :]
        product += tl.sum(tl.load(at, mask=there, other=0.0), 0)
        at = partial_bias_ptr + part[:, None] * total + place[None, :]
        there = (part < num_parts)[:, None] & (row < rows)[None, :]
        grad_bias += tl.sum(tl.load(at, mask=there, other=0.0), 0)
    w = load_matrix(weight, row, column, row < rows, COLUMNS).to(tl.float32)
    grad_weight = product * load_vector(norm_weight_ptr, column, COLUMNS)[None, :]
    grad_weight += grad_bias[:, None] * load_vector(norm_bias_ptr, column, COLUMNS)[None, :]
    start = 2 * COLUMNS + matrix * num_rows * (COLUMNS + 1)
    at = start + row[:, None] * COLUMNS + column[None, :]
    tl.store(flat_grad_ptr + at, grad_weight, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(flat_grad_ptr + start + rows * COLUMNS + row, grad_bias, mask=row < rows)
    cta = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    at = share_ptr + cta * 2 * COLUMNS + column
    tl.store(at, tl.sum(w * product, 0), mask=column < COLUMNS)
    tl.store(at + COLUMNS, tl.sum(w * grad_bias[:, None], 0), mask=column < COLUMNS)


def finish(
    partial: Tensor,
    partial_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    out: Tensor | None = None,
) -> Tensor:
    """Gradients of the norm's weight and bias, and of each weight and its bias, all in one vector.

    ``partial`` (parts, rows of all weights, columns) and ``partial_bias`` without columns: parts of
    G and g. ``out``: where the gradients go, if it is given.
    """
    parts, total, columns = partial.shape
    rows, last = weights[0].shape[0], weights[-1].shape[0]
    flat_grad = norm_weight.new_empty(2 * columns + total * (columns + 1)) if out is None else out
    config = config_for("finish_weights", partial)
    config["BLOCK_N"] = min(config["BLOCK_N"], block(columns))
    across = triton.cdiv(columns, config["BLOCK_N"])
    grid = triton.cdiv(max(rows, last), config["BLOCK_R"]), len(weights), across
    share = partial.new_empty(grid[0] * grid[1], 2 * columns)
    finish_weights_kernel[grid](
        partial, partial_bias, norm_weight, norm_bias, tuple(weights), flat_grad, share, parts,
        total, rows, last, COLUMNS=columns, **config,
    )  # fmt: skip
    sum_rows(share, flat_grad.dtype, flat_grad[: 2 * columns])
    return flat_grad
