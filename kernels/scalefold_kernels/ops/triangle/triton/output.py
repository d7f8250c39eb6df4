"""Output of triangle multiplication in Triton: one kernel each way. Legend as in `parts`.

Backward leaves the sums for the parameters' gradients to `..weights`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block
from scalefold_kernels.dropout.kernel import dropout_factor, hash_of
from scalefold_kernels.dropout.mask import drawing
from scalefold_kernels.loads import load_matrix, load_vector
from scalefold_kernels.ops.triangle.arguments import (
    OutputArguments,
    Sizes,
    new_stats,
)
from scalefold_kernels.ops.triangle.triton.parts import sigmoid, standardise, standardise_backward
from scalefold_kernels.ops.triangle.weights import output_gradients


@triton.jit
def factor_of(dropped, position, column, sizes, SHARED: tl.constexpr):
    """What an update (positions, columns) is multiplied by in dropout."""
    key, layer, threshold, scale = dropped
    num_positions, size_i, size_j = sizes
    position = tl.minimum(position, num_positions - 1)  # whose sample has a key
    line = position // size_j
    state = hash_of(key, 1, line // size_i, layer)[:, None]
    i, j = (line % size_i)[:, None], (position % size_j)[:, None]
    return dropout_factor(state, i, j, column[None, :], threshold, scale, 3, SHARED)


# One binary for all layers: a number 1 would be folded into the code.
@triton.jit(do_not_specialize=["layer"])
def triangle_output_forward_kernel(
    z, product, gate, norm_weight, norm_bias, weight, bias,
    key, layer, threshold, scale, out, mean, rstd, num_positions, size_i, size_j,
    SHARED: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)
    inside = (position[:, None] < num_positions) & (channel < C)[None, :]
    offset = channel[None, :].to(tl.int64) * num_positions + position[:, None]
    x = tl.load(product + offset, mask=inside, other=0.0).to(tl.float32)
    x_hat, mean_P, rstd_P = standardise(x, C, BLOCK_C)
    tl.store(mean + position, mean_P, mask=position < num_positions)
    tl.store(rstd + position, rstd_P, mask=position < num_positions)
    normed = x_hat * load_vector(norm_weight, channel, C)[None, :]
    normed = (normed + load_vector(norm_bias, channel, C)[None, :]).to(product.dtype.element_ty)
    dropped, sizes = (key, layer, threshold, scale), (num_positions, size_i, size_j)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < num_positions) & (column[None, :] < Z)
        logit = tl.load(gate + row + column[None, :], mask=inside_PZ, other=0.0)
        w = load_matrix(weight, column, channel, column < Z, C)
        value = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        value += load_vector(bias, column, Z)[None, :]
        value *= sigmoid(logit.to(tl.float32))
        if key is not None:
            value *= factor_of(dropped, position, column, sizes, SHARED)
        value += tl.load(z + row + column[None, :], mask=inside_PZ, other=0.0).to(tl.float32)
        tl.store(out + row + column[None, :], value.to(out.dtype.element_ty), mask=inside_PZ)


@triton.jit(do_not_specialize=["layer"])
def triangle_output_backward_kernel(
    grad_out, product, gate, mean, rstd, norm_weight, norm_bias, weight, bias,
    key, layer, threshold, scale,
    grad_product, grad_gate, grad_value, x_hat, num_positions, size_i, size_j,
    SHARED: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of product and gate; grad_value (P, Z) and x_hat (C, P) for the weight's."""
    dtype: tl.constexpr = product.dtype.element_ty
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)
    inside_PC = (position[:, None] < num_positions) & (channel < C)[None, :]
    offset_PC = channel[None, :].to(tl.int64) * num_positions + position[:, None]
    x = tl.load(product + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    mean_P = tl.load(mean + position, mask=position < num_positions, other=0.0)
    rstd_P = tl.load(rstd + position, mask=position < num_positions, other=0.0)
    norm_weight_C = load_vector(norm_weight, channel, C)
    norm_bias_C = load_vector(norm_bias, channel, C)
    x_hat_PC = (x - mean_P[:, None]) * rstd_P[:, None]
    normed = (x_hat_PC * norm_weight_C[None, :] + norm_bias_C[None, :]).to(dtype)
    tl.store(x_hat + offset_PC, x_hat_PC.to(dtype), mask=inside_PC)
    grad_normed = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    dropped, sizes = (key, layer, threshold, scale), (num_positions, size_i, size_j)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < num_positions) & (column[None, :] < Z)
        offset_PZ = row + column[None, :]
        w = load_matrix(weight, column, channel, column < Z, C)
        value = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        value += load_vector(bias, column, Z)[None, :]
        grad = tl.load(grad_out + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32)
        opened = sigmoid(tl.load(gate + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32))
        if key is not None:
            grad *= factor_of(dropped, position, column, sizes, SHARED)
        grad *= opened
        grad_logit = grad * value * (1.0 - opened)
        tl.store(grad_gate + offset_PZ, grad_logit.to(dtype), mask=inside_PZ)
        grad = grad.to(dtype)
        tl.store(grad_value + offset_PZ, grad, mask=inside_PZ)
        grad_normed = tl.dot(grad, w, grad_normed, input_precision=PRECISION)
    # Read again: held over the loop it would cost registers, and with them warps.
    x = tl.load(product + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    x_hat_PC = (x - mean_P[:, None]) * rstd_P[:, None]
    grad_x = standardise_backward(grad_normed * norm_weight_C[None, :], x_hat_PC, rstd_P, C)
    tl.store(grad_product + offset_PC, grad_x.to(dtype), mask=inside_PC)


def output_forward(
    sizes: Sizes, given: OutputArguments, z: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Updated z; mean and 1 / standard deviation of each position's product."""
    product, gate, weights, dropout = given
    out = torch.empty_like(z)
    mean, rstd = new_stats(z[..., 0])
    tile = sizes.tile("output_forward", BLOCK_Z=sizes.pair)
    triangle_output_forward_kernel[(triton.cdiv(sizes.positions, tile["BLOCK_P"]),)](
        z, product, gate, *weights, *drawing(dropout), out, mean, rstd, sizes.positions,
        *z.shape[1:3],
        SHARED=0 if dropout is None else dropout.shared, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **tile,
    )  # fmt: skip
    return out, mean, rstd


def output_backward(
    sizes: Sizes, given: OutputArguments, stats: Sequence[Tensor], grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of product and gate; of the parameters, one after the other in one vector."""
    product, gate, weights, dropout = given
    grad_product, x_hat = torch.empty_like(product), torch.empty_like(product)
    grad_gate, grad_value = torch.empty_like(gate), torch.empty_like(gate)
    tile = sizes.tile("output_backward", BLOCK_Z=sizes.pair)
    triangle_output_backward_kernel[(triton.cdiv(sizes.positions, tile["BLOCK_P"]),)](
        grad_out, product, gate, *stats, *weights, *drawing(dropout),
        grad_product, grad_gate, grad_value, x_hat, sizes.positions, *gate.shape[1:3],
        SHARED=0 if dropout is None else dropout.shared, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **tile,
    )  # fmt: skip
    return grad_product, grad_gate, output_gradients(sizes, grad_value, x_hat, weights)
