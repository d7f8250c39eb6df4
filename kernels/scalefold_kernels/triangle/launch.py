"""Triangle multiplication: which kernels are launched.

Between the parts, operands and product are (C, B, I, J): positions last, so that the product is one
batched matrix product of plain matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
import triton
from torch import Tensor

from scalefold_kernels.dropout.arguments import Dropout
from scalefold_kernels.gpu import runs_gluon
from scalefold_kernels.limits import check_batch, needs_int64
from scalefold_kernels.tiles import architecture, tile
from scalefold_kernels.triangle import hopper_launch, kernel, portable
from scalefold_kernels.triangle.arguments import (
    OutputArguments,
    OutputWeights,
    Projected,
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
)
from scalefold_kernels.triangle.sizes import Sizes


def _kernels(sizes: Sizes, x: Tensor) -> ModuleType:
    """Kernels of a Hopper GPU where they serve these sizes, else those for any GPU."""
    return hopper_launch if runs_gluon(x) and hopper_launch.serves(sizes) else portable


def _projection_arguments(
    z: Tensor, mask: Tensor, parameters: Sequence[Tensor]
) -> tuple[Sizes, ProjectionWeights]:
    weights = ProjectionWeights(*parameters)
    hidden, pair = weights.a.shape
    return Sizes.of(z, mask.numel(), pair, hidden), weights


def _output_arguments(
    product: Tensor,
    gate: Tensor,
    parameters: Sequence[Tensor],
    keep: Tensor,
    dropout: Dropout | None,
) -> tuple[Sizes, OutputArguments]:
    weights = OutputWeights(*parameters)
    pair, hidden = weights.matrix.shape
    sizes = Sizes.of(gate, product[0].numel(), pair, hidden)
    return sizes, OutputArguments(product, gate, weights, keep, dropout)


def projection(z: Tensor, mask: Tensor, parameters: Sequence[Tensor]) -> Projected:
    """Operands and gate, with each position's mean and reciprocal deviation."""
    sizes, weights = _projection_arguments(z, mask, parameters)
    found: Projected = _kernels(sizes, z).projection(sizes, z, mask, weights)
    return found


def projection_backward(
    gradients: ProjectionGradients, kept: ProjectionKept, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradient of z; gradients of the parameters, one after the other in one vector."""
    sizes, weights = _projection_arguments(kept.z, kept.mask, parameters)
    d_z, partial, partial_bias = _kernels(sizes, kept.z).projection_backward(
        sizes, gradients, kept, weights
    )
    return d_z, finish(sizes, partial, partial_bias, weights.scale, weights.shift, weights.matrices)


def empty_mask(z: Tensor, hidden: int, shared_dim: int | None) -> Tensor:
    """Memory for the dropout mask of z (B, I, J, Z): size 1 where it is shared.

    Of no element for the kernels that draw it themselves.
    """
    batch, rows, columns, pair = z.shape
    shape = [1 if i - 4 == shared_dim else n for i, n in enumerate(z.shape[:3])]
    if _kernels(Sizes.of(z, batch * rows * columns, pair, hidden), z) is hopper_launch:
        shape = [0]
    return torch.empty(*shape, pair, dtype=torch.uint8, device=z.device)


def dropout_mask(keep: Tensor, dropout: Dropout) -> None:
    """Fill the mask from `empty_mask`.

    Raises
    ------
    ValueError
        There are more samples than a launch can have.
    """
    check_batch("dropout mask", keep)
    size = keep[0].numel()
    blocks = tile("triangle_dropout_mask", architecture(keep.device), {})
    kernel.dropout_mask[(triton.cdiv(size, blocks["BLOCK"]), keep.shape[0])](
        dropout.key, dropout.layer, dropout.threshold, keep, *keep.shape[2:], size,
        SHARED=dropout.shared == 3, INT64=needs_int64(keep[0]), **blocks,
    )  # fmt: skip


def output(
    z: Tensor,
    product: Tensor,
    gate: Tensor,
    parameters: Sequence[Tensor],
    dropout: Dropout | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Updated z, mean and reciprocal deviation of each position's product, the dropout mask."""
    keep = z.new_empty(0)
    if dropout is not None:
        keep = empty_mask(z, product.shape[0], dropout.shared_dim)
        if keep.numel():
            dropout_mask(keep, dropout)
    sizes, given = _output_arguments(product, gate, parameters, keep, dropout)
    out, mean, reciprocal = _kernels(sizes, z).output(sizes, given, z)
    return out, mean, reciprocal, keep


def output_backward(
    d_out: Tensor,
    product: Tensor,
    gate: Tensor,
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor],
    keep: Tensor,
    dropout: Dropout | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of product and gate; of the parameters, one after the other in one vector."""
    sizes, given = _output_arguments(product, gate, parameters, keep, dropout)
    d_product, d_gate, partial, partial_bias = _kernels(sizes, gate).output_backward(
        sizes, given, d_out, statistics
    )
    scale, shift, matrix, _ = given.weights
    return d_product, d_gate, finish(sizes, partial, partial_bias, scale, shift, [matrix])


def finish(
    sizes: Sizes,
    partial: Tensor,
    partial_bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    weights: Sequence[Tensor],
) -> Tensor:
    """Gradients of scale, shift, and each weight and its bias, all in one vector."""
    parts, total, columns = partial.shape
    rows, last = weights[0].shape[0], weights[-1].shape[0]
    gradients = scale.new_empty(2 * columns + total * (columns + 1))
    blocks = sizes.tile("finish_weights", BLOCK_N=columns)
    grid = (
        triton.cdiv(max(rows, last), blocks["BLOCK_R"]),
        len(weights),
        triton.cdiv(columns, blocks["BLOCK_N"]),
    )
    share = partial.new_empty(grid[0] * grid[1], 2 * columns)
    unused = [weights[0]] * (5 - len(weights))
    kernel.finish_weights[grid](
        partial, partial_bias, scale, shift, *weights, *unused,
        gradients, share, parts, total, rows, last,
        COLUMNS=columns, **blocks,
    )  # fmt: skip
    blocks = sizes.tile("sum_rows")
    kernel.sum_rows[(triton.cdiv(2 * columns, blocks["BLOCK_N"]),)](
        share, gradients, *share.shape, **blocks
    )
    return gradients
