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
from scalefold_kernels.ops.triangle.arguments import OutputArguments, Sizes, new_stats
from scalefold_kernels.ops.triangle.triton.parts import sigmoid, standardise, standardise_backward
from scalefold_kernels.ops.triangle.weights import output_gradients


@triton.jit
def factor_of(dropped, position, column, sizes, SHARED: tl.constexpr):
    """What an update (positions, columns) is multiplied by in dropout."""
    key_ptr, layer, threshold, scale = dropped
    num_positions, size_i, size_j = sizes
    position = tl.minimum(position, num_positions - 1)  # whose sample has a key
    line = position // size_j
    state = hash_of(key_ptr, 1, line // size_i, layer)[:, None]
    i, j = (line % size_i)[:, None], (position % size_j)[:, None]
    return dropout_factor(state, i, j, column[None, :], threshold, scale, 3, SHARED)


# One binary for all layers: a number 1 would be folded into the code.
@triton.jit(do_not_specialize=["layer"])
def triangle_output_forward_kernel(
    z_ptr, product_ptr, gate_ptr, norm_weight_ptr, norm_bias_ptr, weight_ptr, bias_ptr,
    key_ptr, layer, threshold, scale, out_ptr, mean_ptr, rstd_ptr, num_positions, size_i, size_j,
    SHARED: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)
    inside = (position[:, None] < num_positions) & (channel < C)[None, :]
    offset = channel[None, :].to(tl.int64) * num_positions + position[:, None]
    x = tl.load(product_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    x_hat, mean, rstd = standardise(x, C, BLOCK_C)
    tl.store(mean_ptr + position, mean, mask=position < num_positions)
    tl.store(rstd_ptr + position, rstd, mask=position < num_positions)
    normed = x_hat * load_vector(norm_weight_ptr, channel, C)[None, :]
    normed += load_vector(norm_bias_ptr, channel, C)[None, :]
    normed = normed.to(product_ptr.dtype.element_ty)
    dropped, sizes = (key_ptr, layer, threshold, scale), (num_positions, size_i, size_j)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < num_positions) & (column[None, :] < Z)
        logit = tl.load(gate_ptr + row + column[None, :], mask=inside_PZ, other=0.0)
        weight = load_matrix(weight_ptr, column, channel, column < Z, C)
        value = tl.dot(normed, tl.trans(weight), input_precision=PRECISION)
        value += load_vector(bias_ptr, column, Z)[None, :]
        value *= sigmoid(logit.to(tl.float32))
        if key_ptr is not None:
            value *= factor_of(dropped, position, column, sizes, SHARED)
        value += tl.load(z_ptr + row + column[None, :], mask=inside_PZ, other=0.0).to(tl.float32)
        tl.store(out_ptr + row + column[None, :], value, mask=inside_PZ)


@triton.jit(do_not_specialize=["layer"])
def triangle_output_backward_kernel(
    grad_out_ptr, product_ptr, gate_ptr, mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr,
    weight_ptr, bias_ptr, key_ptr, layer, threshold, scale,
    grad_product_ptr, grad_gate_ptr, grad_value_ptr, x_hat_ptr, num_positions, size_i, size_j,
    SHARED: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of product and gate; grad_value (P, Z) and x_hat (C, P) for the weight's."""
    dtype: tl.constexpr = product_ptr.dtype.element_ty
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)
    inside_PC = (position[:, None] < num_positions) & (channel < C)[None, :]
    offset_PC = channel[None, :].to(tl.int64) * num_positions + position[:, None]
    x = tl.load(product_ptr + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + position, mask=position < num_positions, other=0.0)
    rstd = tl.load(rstd_ptr + position, mask=position < num_positions, other=0.0)
    norm_weight = load_vector(norm_weight_ptr, channel, C)
    norm_bias = load_vector(norm_bias_ptr, channel, C)
    x_hat = (x - mean[:, None]) * rstd[:, None]
    normed = (x_hat * norm_weight[None, :] + norm_bias[None, :]).to(dtype)
    tl.store(x_hat_ptr + offset_PC, x_hat, mask=inside_PC)
    grad_normed = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    dropped, sizes = (key_ptr, layer, threshold, scale), (num_positions, size_i, size_j)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < num_positions) & (column[None, :] < Z)
        offset_PZ = row + column[None, :]
        weight = load_matrix(weight_ptr, column, channel, column < Z, C)
        value = tl.dot(normed, tl.trans(weight), input_precision=PRECISION)
        value += load_vector(bias_ptr, column, Z)[None, :]
        grad = tl.load(grad_out_ptr + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32)
        opened = sigmoid(tl.load(gate_ptr + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32))
        if key_ptr is not None:
            grad *= factor_of(dropped, position, column, sizes, SHARED)
        grad *= opened
        grad_logit = grad * value * (1.0 - opened)
        tl.store(grad_gate_ptr + offset_PZ, grad_logit, mask=inside_PZ)
        grad = grad.to(dtype)
        tl.store(grad_value_ptr + offset_PZ, grad, mask=inside_PZ)
        grad_normed = tl.dot(grad, weight, grad_normed, input_precision=PRECISION)
    # Read again: held over the loop it would cost registers, and with them warps.
    x = tl.load(product_ptr + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    x_hat = (x - mean[:, None]) * rstd[:, None]
    grad_x = standardise_backward(grad_normed * norm_weight[None, :], x_hat, rstd, C)
    tl.store(grad_product_ptr + offset_PC, grad_x, mask=inside_PC)


def output_forward(
    sizes: Sizes, given: OutputArguments, z: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Updated z; mean and 1 / standard deviation of each position's product."""
    product, gate, weights, dropout = given
    out = torch.empty_like(z)
    mean, rstd = new_stats(z[..., 0])
    config = sizes.config("output_forward", BLOCK_Z=sizes.pair)
    triangle_output_forward_kernel[(triton.cdiv(sizes.positions, config["BLOCK_P"]),)](
        z, product, gate, *weights, *drawing(dropout), out, mean, rstd, sizes.positions,
        *z.shape[1:3],
        SHARED=0 if dropout is None else dropout.shared, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **config,
    )  # fmt: skip
    return out, mean, rstd


def output_backward(
    sizes: Sizes, given: OutputArguments, stats: Sequence[Tensor], grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of product and gate; of the parameters, one after the other in one vector."""
    product, gate, weights, dropout = given
    grad_product, x_hat = torch.empty_like(product), torch.empty_like(product)
    grad_gate, grad_value = torch.empty_like(gate), torch.empty_like(gate)
    config = sizes.config("output_backward", BLOCK_Z=sizes.pair)
    triangle_output_backward_kernel[(triton.cdiv(sizes.positions, config["BLOCK_P"]),)](
        grad_out, product, gate, *stats, *weights, *drawing(dropout),
        grad_product, grad_gate, grad_value, x_hat, sizes.positions, *gate.shape[1:3],
        SHARED=0 if dropout is None else dropout.shared, BLOCK_C=block(sizes.hidden),
        **sizes.constants(), **config,
    )  # fmt: skip
    return grad_product, grad_gate, output_gradients(sizes, grad_value, x_hat, weights)
