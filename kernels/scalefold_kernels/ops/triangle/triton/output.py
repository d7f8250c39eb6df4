"""Output of triangle multiplication in Triton: one kernel each way. Legend as in `parts`.

Before forward, another kernel draws the dropout mask, which is kept. Backward leaves what the
parameters' gradients are made of to `weights`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.checks import check_batch
from scalefold_kernels.dot import block
from scalefold_kernels.dropout.kernel import UNIFORM_MASK, mix
from scalefold_kernels.dropout.mask import Dropout
from scalefold_kernels.limits import index, needs_int64
from scalefold_kernels.ops.triangle.arguments import (
    EPS,
    OutputArguments,
    OutputKept,
    Sizes,
    new_statistics,
)
from scalefold_kernels.ops.triangle.arguments import empty_mask as empty_mask
from scalefold_kernels.ops.triangle.triton.parts import (
    matrix,
    norm_gradient,
    sigmoid,
    standardise,
    vector,
)
from scalefold_kernels.ops.triangle.triton.weights import output_gradients
from scalefold_kernels.tiles import architecture, tile


@triton.jit
def dropped_out(
    update, keep, keep_b, keep_i, keep_j, factor, position, column, inside, ROWS, COLUMNS
):  # fmt: skip
    """An update (positions, columns) after dropout; ``keep`` from `fill_mask`."""
    j = position % COLUMNS
    i = position // COLUMNS % ROWS
    sample = position // COLUMNS // ROWS
    row = keep + sample.to(tl.int64) * keep_b + i.to(tl.int64) * keep_i + j * keep_j
    kept = tl.load(row[:, None] + column[None, :], mask=inside, other=0)
    return update * (kept.to(tl.float32) * factor)


@triton.jit
def output_forward_kernel(
    z, product, gate, norm_weight, norm_bias, weight, bias,
    keep, keep_b, keep_i, keep_j, factor, out, mean, reciprocal, P, ROWS, COLUMNS, eps,
    HAS_DROPOUT: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)[None, :]
    inside = (position[:, None] < P) & (channel < C)
    offset = channel.to(tl.int64) * P + position[:, None]
    x = tl.load(product + offset, mask=inside, other=0.0).to(tl.float32)
    standard, mean_P, reciprocal_P = standardise(x, C, BLOCK_C, eps)
    tl.store(mean + position, mean_P, mask=position < P)
    tl.store(reciprocal + position, reciprocal_P, mask=position < P)
    normed = standard * vector(norm_weight, 0, C, BLOCK_C)[None, :]
    normed = (normed + vector(norm_bias, 0, C, BLOCK_C)[None, :]).to(product.dtype.element_ty)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < P) & (column[None, :] < Z)
        logit = tl.load(gate + row + column[None, :], mask=inside_PZ, other=0.0)
        w = matrix(weight, first, Z, C, BLOCK_Z, BLOCK_C)
        value = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        value += vector(bias, first, Z, BLOCK_Z)[None, :]
        value *= sigmoid(logit.to(tl.float32))
        if HAS_DROPOUT:
            value = dropped_out(
                value, keep, keep_b, keep_i, keep_j, factor, position, column, inside_PZ,
                ROWS, COLUMNS,
            )  # fmt: skip
        value += tl.load(z + row + column[None, :], mask=inside_PZ, other=0.0).to(tl.float32)
        tl.store(out + row + column[None, :], value.to(out.dtype.element_ty), mask=inside_PZ)


@triton.jit
def output_backward_kernel(
    d_out, product, gate, mean, reciprocal, norm_weight, norm_bias, weight, bias,
    keep, keep_b, keep_i, keep_j, factor,
    d_product, d_gate, d_value, standard, P, ROWS, COLUMNS,
    HAS_DROPOUT: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of product and gate; d_value (P, Z) and standard (C, P) for the weight's."""
    dtype: tl.constexpr = product.dtype.element_ty
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)[None, :]
    inside_PC = (position[:, None] < P) & (channel < C)
    offset_PC = channel.to(tl.int64) * P + position[:, None]
    x = tl.load(product + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    mean_P = tl.load(mean + position, mask=position < P, other=0.0)
    reciprocal_P = tl.load(reciprocal + position, mask=position < P, other=0.0)
    scale_C = vector(norm_weight, 0, C, BLOCK_C)
    shift_C = vector(norm_bias, 0, C, BLOCK_C)
    standard_PC = (x - mean_P[:, None]) * reciprocal_P[:, None]
    normed = (standard_PC * scale_C[None, :] + shift_C[None, :]).to(dtype)
    tl.store(standard + offset_PC, standard_PC.to(dtype), mask=inside_PC)
    d_normed = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < P) & (column[None, :] < Z)
        offset_PZ = row + column[None, :]
        w = matrix(weight, first, Z, C, BLOCK_Z, BLOCK_C)
        value = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        value += vector(bias, first, Z, BLOCK_Z)[None, :]
        gradient = tl.load(d_out + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32)
        opened = sigmoid(tl.load(gate + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32))
        if HAS_DROPOUT:
            gradient = dropped_out(
                gradient, keep, keep_b, keep_i, keep_j, factor, position, column, inside_PZ,
                ROWS, COLUMNS,
            )  # fmt: skip
        gradient *= opened
        d_logit = gradient * value * (1.0 - opened)
        tl.store(d_gate + offset_PZ, d_logit.to(dtype), mask=inside_PZ)
        gradient = gradient.to(dtype)
        tl.store(d_value + offset_PZ, gradient, mask=inside_PZ)
        d_normed = tl.dot(gradient, w, d_normed, input_precision=PRECISION)
    # Read again: held over the loop it would cost registers, and with them warps.
    x = tl.load(product + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    standard_PC = (x - mean_P[:, None]) * reciprocal_P[:, None]
    d_x = norm_gradient(d_normed * scale_C[None, :], standard_PC, reciprocal_P, C)
    tl.store(d_product + offset_PC, d_x.to(dtype), mask=inside_PC)


# One binary for all layers: a number 1 would be folded into the code, and is no tensor there.
@triton.jit(do_not_specialize=["layer"])
def dropout_mask_kernel(
    key, layer, threshold, keep, D2, D3, SIZE,
    SHARED: tl.constexpr, INT64: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Which channels of an update are kept: the mask of `scalefold.ops.dropout`.

    keep: for each sample SIZE = D1 D2 D3 bytes, D3 channels; whether these share one draw is
    SHARED. D1 and D2 are 1 where shared.
    """
    element = index(tl.program_id(0), INT64) * BLOCK + tl.arange(0, BLOCK)
    sample = tl.program_id(1)
    channel, place = element % D3, element // D3
    state = mix(mix(tl.load(key + sample), tl.zeros((), tl.int32)), layer)
    state = mix(mix(state, place // D2), place % D2)
    state = mix(state, channel * 0 if SHARED else channel)
    kept = ((state >> 40) & UNIFORM_MASK) >= threshold
    at = keep + sample.to(tl.int64) * SIZE + element
    tl.store(at, kept.to(tl.uint8), mask=element < SIZE)


def output_forward(
    sizes: Sizes, given: OutputArguments, z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Updated z, mean and reciprocal deviation of each position's product, the dropout mask."""
    out = torch.empty_like(z)
    mean, reciprocal = new_statistics(z[..., 0])
    keep = z.new_empty(0)
    if given.dropout is not None:
        keep = empty_mask(z, given.dropout.shared_dim)
        fill_mask(keep, given.dropout)
    blocks = sizes.tile("output_forward", BLOCK_Z=sizes.pair)
    output_forward_kernel[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        z, given.product, given.gate, *given.weights, *_mask_arguments(keep, given.dropout),
        out, mean, reciprocal, sizes.positions, *z.shape[1:3], EPS,
        HAS_DROPOUT=given.dropout is not None, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return out, mean, reciprocal, keep


def output_backward(
    sizes: Sizes, given: OutputArguments, kept: OutputKept, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of product and gate; of the parameters, one after the other in one vector."""
    product, gate, weights, dropout = given
    d_product, standard = torch.empty_like(product), torch.empty_like(product)
    d_gate, d_value = torch.empty_like(gate), torch.empty_like(gate)
    blocks = sizes.tile("output_backward", BLOCK_Z=sizes.pair)
    output_backward_kernel[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        d_out, product, gate, kept.mean, kept.reciprocal, *weights,
        *_mask_arguments(kept.keep, dropout),
        d_product, d_gate, d_value, standard, sizes.positions, *gate.shape[1:3],
        HAS_DROPOUT=dropout is not None, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return d_product, d_gate, output_gradients(sizes, d_value, standard, weights)


def fill_mask(keep: Tensor, dropout: Dropout) -> None:
    """Fill the mask from `empty_mask`.

    Raises ValueError where there are more samples than a launch can have.
    """
    check_batch("dropout mask", keep)
    size = keep[0].numel()
    blocks = tile("triangle_dropout_mask", architecture(keep.device), {})
    dropout_mask_kernel[(triton.cdiv(size, blocks["BLOCK"]), keep.shape[0])](
        dropout.key, dropout.layer, dropout.threshold, keep, *keep.shape[2:], size,
        SHARED=dropout.shared == 3, INT64=needs_int64(keep[0]), **blocks,
    )  # fmt: skip


def _mask_arguments(
    keep: Tensor, dropout: Dropout | None
) -> tuple[Tensor | None, int, int, int, float]:
    """The mask; its strides along B, I and J, 0 where it is shared; what is kept is scaled by."""
    if dropout is None:
        return None, 0, 0, 0, 1.0
    strides = zip(keep.shape, keep.stride(), strict=True)
    sample, row, column, _ = (stride if size > 1 else 0 for size, stride in strides)
    return keep, sample, row, column, dropout.factor
