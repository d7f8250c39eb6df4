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

from scalefold_kernels.tiles import architecture, tile
from scalefold_kernels.triangle import hopper_launch, kernel, portable
from scalefold_kernels.triangle.sizes import DroppedOut, Sizes

HOPPER_KERNELS = True
"""Whether `hopper_launch` takes what it can; else `portable` takes all."""


def _kernels(sizes: Sizes) -> ModuleType:
    return hopper_launch if HOPPER_KERNELS and hopper_launch.serves(sizes) else portable


def projection(z: Tensor, mask: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Operands (C, B, I, J), gate (B, I, J, Z), and each position's mean, reciprocal deviation."""
    hidden, pair = parameters[2].shape
    sizes = Sizes.of(z, mask.numel(), pair, hidden)
    found: tuple[Tensor, ...] = _kernels(sizes).projection(sizes, z, mask, parameters)
    return found


def projection_backward(
    gradients: Sequence[Tensor],
    d_through: Tensor | None,
    z: Tensor,
    mask: Tensor,
    operands: Sequence[Tensor],
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Gradient of z; gradients of the parameters, one after the other in one vector."""
    scale, shift, a_w, _, a_gate_w, _, b_w, _, b_gate_w, _, gate_w, _ = parameters
    hidden, pair = a_w.shape
    sizes = Sizes.of(z, mask.numel(), pair, hidden)
    d_z, d_values, standard = _kernels(sizes).projection_input(
        sizes, gradients, d_through, z, mask, operands, statistics, parameters
    )
    partial, partial_bias = _partial(z, sizes, "projection_weights", 4 * hidden + pair, pair)
    blocks = sizes.tile("projection_weights", BLOCK_R=max(pair, hidden), BLOCK_N=pair)
    rows = triton.cdiv(4 * hidden, blocks["BLOCK_R"]) + triton.cdiv(pair, blocks["BLOCK_R"])
    kernel.projection_weights[(blocks.pop("PARTS"), rows, triton.cdiv(pair, blocks["BLOCK_N"]))](
        d_values, gradients[2], standard, partial, partial_bias, sizes.positions,
        **sizes.constants(), **blocks,
    )  # fmt: skip
    weights = [a_w, a_gate_w, b_w, b_gate_w, gate_w]
    return d_z, _finish(sizes, partial, partial_bias, scale, shift, weights)


def mask_shape(shape: Sequence[int], shared_dim: int | None) -> list[int]:
    """Of the mask of a tensor: 1 in the dimension over which it is shared."""
    shape = list(shape)
    if shared_dim is not None:
        shape[shared_dim] = 1
    return shape


def dropout_mask(
    shape: Sequence[int], key: Tensor, layer: int, rate: float, shared_dim: int | None
) -> Tensor:
    """Which elements of an update (B, I, J, Z) are kept, uint8."""
    keep = torch.empty(mask_shape(shape, shared_dim), dtype=torch.uint8, device=key.device)
    size, threshold = keep[0].numel(), round(rate * (kernel.UNIFORM_MASK.value + 1))
    blocks = tile("triangle_dropout_mask", architecture(key.device), {})
    kernel.dropout_mask[(triton.cdiv(size, blocks["BLOCK"]), keep.shape[0])](
        key, key.stride(0), layer, threshold, keep, *keep.shape[1:], size, **blocks
    )
    return keep


def output(
    z: Tensor,
    product: Tensor,
    gate: Tensor,
    parameters: Sequence[Tensor],
    keep: Tensor | None,
    factor: float,
) -> tuple[Tensor, ...]:
    """Updated z, and the mean and reciprocal deviation of each position's product."""
    pair, hidden = parameters[2].shape
    sizes = Sizes.of(gate, product[0].numel(), pair, hidden)
    found: tuple[Tensor, ...] = _kernels(sizes).output(
        sizes, z, product, gate, parameters, DroppedOut.of(keep, factor)
    )
    return found


def output_backward(
    d_out: Tensor,
    product: Tensor,
    gate: Tensor,
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor],
    keep: Tensor | None,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of product and gate; of the parameters, one after the other in one vector."""
    scale, shift, weight, _ = parameters
    pair, hidden = weight.shape
    sizes = Sizes.of(gate, product[0].numel(), pair, hidden)
    d_product, d_gate, d_value, standard = portable.output_input(
        sizes, d_out, product, gate, statistics, parameters, DroppedOut.of(keep, factor)
    )
    partial, partial_bias = _partial(gate, sizes, "output_weights", pair, hidden)
    blocks = sizes.tile("output_weights", BLOCK_R=pair, BLOCK_N=hidden)
    rows = triton.cdiv(pair, blocks["BLOCK_R"])
    kernel.output_weights[(blocks.pop("PARTS"), rows, triton.cdiv(hidden, blocks["BLOCK_N"]))](
        d_value, standard, partial, partial_bias, sizes.positions,
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return d_product, d_gate, _finish(sizes, partial, partial_bias, scale, shift, [weight])


def _partial(
    like: Tensor, sizes: Sizes, name: str, rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    """Where the parts of the sums over positions go: their number is the tile's."""
    parts = sizes.tile(name)["PARTS"]
    partial = like.new_empty(parts, rows, columns, dtype=torch.float32)
    return partial, partial.new_empty(parts, rows)


def _finish(
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
    blocks = sizes.tile("finish_weights")
    grid = triton.cdiv(max(rows, last), blocks["BLOCK_R"]), len(weights)
    share = partial.new_empty(grid[0] * grid[1], 2 * columns)
    unused = [weights[0]] * (5 - len(weights))
    kernel.finish_weights[grid](
        partial, partial_bias, scale, shift, *weights, *unused,
        gradients, share, parts, total, rows, last,
        COLUMNS=columns, BLOCK_N=triton.next_power_of_2(columns), **blocks,
    )  # fmt: skip
    blocks = sizes.tile("sum_rows")
    kernel.sum_rows[(triton.cdiv(2 * columns, blocks["BLOCK_N"]),)](
        share, gradients, *share.shape, **blocks
    )
    return gradients
