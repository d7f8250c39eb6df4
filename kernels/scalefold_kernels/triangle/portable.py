"""Launches of the kernels for any GPU, see `kernel`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from scalefold_kernels.dot import block
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.triangle import kernel
from scalefold_kernels.triangle.arguments import (
    OutputArguments,
    Projected,
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
    new_statistics,
)
from scalefold_kernels.triangle.sizes import EPS, DroppedOut, Sizes


def projection(sizes: Sizes, z: Tensor, mask: Tensor, weights: ProjectionWeights) -> Projected:
    """Operands, gate, and the statistics of each position."""
    found = Projected.empty(z, sizes.hidden)
    blocks = sizes.tile("projection_forward", BLOCK_C=min(sizes.hidden, sizes.pair))
    kernel.projection_forward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        z, mask, *weights, *found, sizes.positions, EPS,
        BLOCK_Z=block(sizes.pair), **sizes.constants(), **blocks,
    )  # fmt: skip
    return found


def projection_backward(
    sizes: Sizes, gradients: ProjectionGradients, kept: ProjectionKept, weights: ProjectionWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of z; sums (parts, 4 C + Z, Z) and (parts, 4 C + Z) for the parameters'."""
    z, mask, a, b, mean, reciprocal = kept
    d_z, standard = torch.empty_like(z), torch.empty_like(z)
    d_values = z.new_empty(4 * sizes.hidden, sizes.positions)
    blocks = sizes.tile("projection_backward", BLOCK_C=min(sizes.hidden, sizes.pair))
    kernel.projection_backward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        *gradients, z, mask, mean, reciprocal, a, b, weights.scale, weights.shift,
        weights.a, weights.a_gate, weights.a_gate_bias,
        weights.b, weights.b_gate, weights.b_gate_bias, weights.gate,
        d_z, d_values, standard, sizes.positions,
        HAS_THROUGH=gradients.through is not None, BLOCK_Z=block(sizes.pair),
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return d_z, *projection_weights(sizes, d_values, gradients.gate, standard)


def projection_weights(
    sizes: Sizes, d_values: Tensor, d_gate: Tensor, standard: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums (parts, 4 C + Z, Z) and (parts, 4 C + Z) that the parameters' gradients are made of."""
    pair, hidden = sizes.pair, sizes.hidden
    partial, partial_bias = _partial(standard, sizes, "projection_weights", 4 * hidden + pair, pair)
    blocks = sizes.tile("projection_weights", BLOCK_R=max(pair, hidden), BLOCK_N=pair)
    rows = triton.cdiv(4 * hidden, blocks["BLOCK_R"]) + triton.cdiv(pair, blocks["BLOCK_R"])
    kernel.projection_weights[(blocks.pop("PARTS"), rows, triton.cdiv(pair, blocks["BLOCK_N"]))](
        d_values, d_gate, standard, partial, partial_bias, sizes.positions,
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return partial, partial_bias


def output(sizes: Sizes, given: OutputArguments, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Updated z, and the statistics of each position's product."""
    out = torch.empty_like(z)
    mean, reciprocal = new_statistics(z[..., 0])
    blocks = sizes.tile("output_forward", BLOCK_Z=sizes.pair)
    dropped = DroppedOut.of(given.keep, given.dropout)
    kernel.output_forward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        z, given.product, given.gate, *given.weights, *dropped, out, mean, reciprocal,
        sizes.positions, *z.shape[1:3], EPS,
        HAS_DROPOUT=given.dropout is not None, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return out, mean, reciprocal


def output_backward(
    sizes: Sizes, given: OutputArguments, d_out: Tensor, statistics: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of product and gate; sums (parts, Z, C) and (parts, Z) for the parameters'."""
    product, gate, weights, keep, dropout = given
    dropped = DroppedOut.of(keep, dropout)
    d_product, standard = torch.empty_like(product), torch.empty_like(product)
    d_gate, d_value = torch.empty_like(gate), torch.empty_like(gate)
    blocks = sizes.tile("output_backward", BLOCK_Z=sizes.pair)
    kernel.output_backward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        d_out, product, gate, *statistics, *weights, *dropped,
        d_product, d_gate, d_value, standard, sizes.positions, *gate.shape[1:3],
        HAS_DROPOUT=dropout is not None, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **blocks,
    )  # fmt: skip
    pair, hidden = sizes.pair, sizes.hidden
    partial, partial_bias = _partial(gate, sizes, "output_weights", pair, hidden)
    blocks = sizes.tile("output_weights", BLOCK_R=pair, BLOCK_N=hidden)
    rows = triton.cdiv(pair, blocks["BLOCK_R"])
    kernel.output_weights[(blocks.pop("PARTS"), rows, triton.cdiv(hidden, blocks["BLOCK_N"]))](
        d_value, standard, partial, partial_bias, sizes.positions, INT64=needs_int64(standard),
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return d_product, d_gate, partial, partial_bias


def _partial(
    like: Tensor, sizes: Sizes, name: str, rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    """Where the parts of the sums over positions go: their number is the tile's."""
    parts = sizes.tile(name)["PARTS"]
    partial = like.new_empty(parts, rows, columns, dtype=torch.float32)
    return partial, partial.new_empty(parts, rows)
