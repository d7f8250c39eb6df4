"""Gradients of the parameters of triangle multiplication, for all backends of its projections.

They are taken against ``x_hat``, the values before LayerNorm's weight and bias, and finished by
`norm.weights`. So the matrix products have the only sums over positions. Legend as in
`triton.parts`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.limits import index, needs_int64
from scalefold_kernels.ops.norm.weights import finish
from scalefold_kernels.ops.triangle.arguments import OutputWeights, ProjectionWeights, Sizes


@triton.jit
def sum_products(
    grad_ptr, x_hat_ptr, row, column, num_positions, num_rows, num_columns, grad_row, grad_position,
    x_hat_position, x_hat_column, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over this CTA's positions of gradient x x_hat, and of the gradient (16 times)."""
    dtype: tl.constexpr = grad_ptr.dtype.element_ty
    products = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    sums = tl.zeros((row.shape[0], 16), tl.float32)
    ones = tl.full((BLOCK_P, 16), 1.0, dtype)
    tiles = tl.cdiv(num_positions, BLOCK_P)
    for from_last in range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile = tiles - 1 - from_last  # the last ones written are still in the L2 cache
        position = (tile * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)
        inside = (row[:, None] < num_rows) & (position[None, :] < num_positions)
        at = grad_ptr + row[:, None] * grad_row + position[None, :] * grad_position
        left = tl.load(at, mask=inside, other=0.0)
        inside = (position[:, None] < num_positions) & (column[None, :] < num_columns)
        at = x_hat_ptr + position[:, None] * x_hat_position + column[None, :] * x_hat_column
        right = tl.load(at, mask=inside, other=0.0)
        products = tl.dot(left, right, products, input_precision=PRECISION)
        sums = tl.dot(left, ones, sums, input_precision=PRECISION)
    return products, sums


@triton.jit
def store_part(places, part, first, row, column, total, num_rows, num_columns):
    """Store a part in partial (parts, total, num_columns) and partial_bias (parts, total)."""
    partial_ptr, partial_bias_ptr = places
    products, sums = part
    place = tl.program_id(0) * total + first + row
    inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
    tl.store(partial_ptr + place[:, None] * num_columns + column[None, :], products, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(partial_bias_ptr + place, tl.sum(sums, 1) / 16, mask=row < num_rows)


@triton.jit
def triangle_output_weights_kernel(
    grad_value_ptr, x_hat_ptr, partial_ptr, partial_bias_ptr, num_positions,
    INT64: tl.constexpr, Z: tl.constexpr, C: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of grad_value (P, Z) x x_hat (C, P); the grid is parts, rows, columns."""
    row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = sum_products(
        grad_value_ptr, x_hat_ptr, row, index(column, INT64), num_positions, Z, C, 1, Z, 1,
        num_positions, BLOCK_P, PRECISION,
    )  # fmt: skip
    store_part((partial_ptr, partial_bias_ptr), part, 0, row, column, Z, Z, C)


@triton.jit
def triangle_projection_weights_kernel(
    grad_values_ptr, grad_gate_ptr, x_hat_ptr, partial_ptr, partial_bias_ptr, num_positions,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of grad_values (4 C, P), then of grad_gate (P, Z), x x_hat (P, Z)."""
    ABOVE: tl.constexpr = (4 * C + BLOCK_R - 1) // BLOCK_R
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    places = partial_ptr, partial_bias_ptr
    if tl.program_id(1) < ABOVE:
        row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
        part = sum_products(
            grad_values_ptr, x_hat_ptr, row.to(tl.int64), column, num_positions, 4 * C, Z,
            num_positions, 1, Z, 1, BLOCK_P, PRECISION,
        )  # fmt: skip
        store_part(places, part, 0, row, column, 4 * C + Z, 4 * C, Z)
    else:
        row = (tl.program_id(1) - ABOVE) * BLOCK_R + tl.arange(0, BLOCK_R)
        part = sum_products(
            grad_gate_ptr, x_hat_ptr, row, column, num_positions, Z, Z, 1, Z, Z, 1,
            BLOCK_P, PRECISION,
        )  # fmt: skip
        store_part(places, part, 4 * C, row, column, 4 * C + Z, Z, Z)


def projection_gradients(
    sizes: Sizes, grad_values: Tensor, grad_gate: Tensor, x_hat: Tensor, weights: ProjectionWeights
) -> Tensor:
    """Gradients of all parameters of the projection, one after the other in one vector.

    ``grad_values`` (4 C, P): gradients of a's values, of its gate's logits, and of those of b;
    ``grad_gate`` and ``x_hat`` (P, Z).
    """
    pair, hidden = sizes.pair, sizes.hidden
    config = sizes.config("projection_weights", BLOCK_R=max(pair, hidden), BLOCK_N=pair)
    rows = triton.cdiv(4 * hidden, config["BLOCK_R"]) + triton.cdiv(pair, config["BLOCK_R"])
    grid = config.pop("PARTS"), rows, triton.cdiv(pair, config["BLOCK_N"])
    partial, partial_bias = _partial(x_hat, grid[0], 4 * hidden + pair, pair)
    triangle_projection_weights_kernel[grid](
        grad_values, grad_gate, x_hat, partial, partial_bias, sizes.positions,
        **sizes.constants(), **config,
    )  # fmt: skip
    return finish(partial, partial_bias, weights.norm_weight, weights.norm_bias, weights.matrices)


def output_gradients(
    sizes: Sizes, grad_value: Tensor, x_hat: Tensor, weights: OutputWeights
) -> Tensor:
    """As `projection_gradients`, of the output: ``grad_value`` (P, Z), ``x_hat`` (C, P)."""
    pair, hidden = sizes.pair, sizes.hidden
    config = sizes.config("output_weights", BLOCK_R=pair, BLOCK_N=hidden)
    rows = triton.cdiv(pair, config["BLOCK_R"])
    grid = config.pop("PARTS"), rows, triton.cdiv(hidden, config["BLOCK_N"])
    partial, partial_bias = _partial(grad_value, grid[0], pair, hidden)
    triangle_output_weights_kernel[grid](
        grad_value, x_hat, partial, partial_bias, sizes.positions, INT64=needs_int64(x_hat),
        **sizes.constants(), **config,
    )  # fmt: skip
    return finish(partial, partial_bias, weights.norm_weight, weights.norm_bias, [weights.matrix])


def _partial(like: Tensor, parts: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Where the parts of the sums over positions go."""
    partial = like.new_empty(parts, rows, columns, dtype=torch.float32)
    return partial, partial.new_empty(parts, rows)
