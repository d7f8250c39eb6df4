"""Projection of triangle multiplication in Triton: one kernel each way. Legend as in `parts`.

Backward leaves the sums for the parameters' gradients to `..weights`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block
from scalefold_kernels.loads import load_matrix, load_vector
from scalefold_kernels.ops.triangle.arguments import (
    Projected,
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
    Sizes,
)
from scalefold_kernels.ops.triangle.triton.parts import sigmoid, standardise, standardise_backward
from scalefold_kernels.ops.triangle.weights import projection_gradients


@triton.jit
def triangle_projection_forward_kernel(
    z_ptr, mask_ptr, norm_weight_ptr, norm_bias_ptr,
    a_weight_ptr, a_bias_ptr, a_gate_weight_ptr, a_gate_bias_ptr,
    b_weight_ptr, b_bias_ptr, b_gate_weight_ptr, b_gate_bias_ptr,
    gate_weight_ptr, gate_bias_ptr,
    a_ptr, b_ptr, gate_ptr, mean_ptr, rstd_ptr, num_positions,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    z = tl.arange(0, BLOCK_Z)
    inside = (position[:, None] < num_positions) & (z[None, :] < Z)
    row = position.to(tl.int64)[:, None] * Z
    x = tl.load(z_ptr + row + z[None, :], mask=inside, other=0.0).to(tl.float32)
    mask = tl.load(mask_ptr + position, mask=position < num_positions, other=0.0).to(tl.float32)
    x_hat, mean, rstd = standardise(x, Z, BLOCK_Z)
    tl.store(mean_ptr + position, mean, mask=position < num_positions)
    tl.store(rstd_ptr + position, rstd, mask=position < num_positions)
    normed = x_hat * load_vector(norm_weight_ptr, z, Z)[None, :]
    normed = (normed + load_vector(norm_bias_ptr, z, Z)[None, :]).to(z_ptr.dtype.element_ty)
    for step in tl.range(0, 2 * ((C + BLOCK_C - 1) // BLOCK_C), num_stages=STAGES):
        channel = step // 2 * BLOCK_C + tl.arange(0, BLOCK_C)
        is_a = step % 2 == 0
        weight_ptr = tl.where(is_a, a_weight_ptr, b_weight_ptr)
        gate_w = tl.where(is_a, a_gate_weight_ptr, b_gate_weight_ptr)
        gate_w = tl.trans(load_matrix(gate_w, channel, z, channel < C, Z))
        opened = tl.dot(normed, gate_w, input_precision=PRECISION)
        weight = tl.trans(load_matrix(weight_ptr, channel, z, channel < C, Z))
        value = tl.dot(normed, weight, input_precision=PRECISION)
        opened += load_vector(tl.where(is_a, a_gate_bias_ptr, b_gate_bias_ptr), channel, C)[None, :]
        value += load_vector(tl.where(is_a, a_bias_ptr, b_bias_ptr), channel, C)[None, :]
        value *= sigmoid(opened) * mask[:, None]
        inside_PC = (position[:, None] < num_positions) & (channel < C)[None, :]
        at = tl.where(is_a, a_ptr, b_ptr) + channel[None, :].to(tl.int64) * num_positions
        tl.store(at + position[:, None], value, mask=inside_PC)
    for first in tl.range(0, Z, BLOCK_C, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_C)
        weight = load_matrix(gate_weight_ptr, column, z, column < Z, Z)
        logit = tl.dot(normed, tl.trans(weight), input_precision=PRECISION)
        logit += load_vector(gate_bias_ptr, column, Z)[None, :]
        inside_column = (position[:, None] < num_positions) & (column[None, :] < Z)
        logit = logit.to(gate_ptr.dtype.element_ty)
        tl.store(gate_ptr + row + column[None, :], logit, mask=inside_column)


@triton.jit
def triangle_projection_backward_kernel(
    grad_a_ptr, grad_b_ptr, grad_gate_ptr, through_ptr, z_ptr, mask_ptr, mean_ptr, rstd_ptr, a_ptr,
    b_ptr, norm_weight_ptr, norm_bias_ptr, a_weight_ptr, a_gate_weight_ptr, a_gate_bias_ptr,
    b_weight_ptr, b_gate_weight_ptr, b_gate_bias_ptr, gate_weight_ptr,
    grad_z_ptr, grad_values_ptr, x_hat_ptr, num_positions,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of z; grad_values (4, C, P) and x_hat (P, Z) for those of the weights.

    through: gradient of z elsewhere, added here. grad_values: gradients of a's value and its gate's
    logit, then of b's.
    """
    dtype: tl.constexpr = z_ptr.dtype.element_ty
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    z = tl.arange(0, BLOCK_Z)
    inside = (position[:, None] < num_positions) & (z[None, :] < Z)
    row = position.to(tl.int64)[:, None] * Z
    x = tl.load(z_ptr + row + z[None, :], mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + position, mask=position < num_positions, other=0.0)
    rstd = tl.load(rstd_ptr + position, mask=position < num_positions, other=0.0)
    mask = tl.load(mask_ptr + position, mask=position < num_positions, other=0.0).to(tl.float32)
    norm_weight = load_vector(norm_weight_ptr, z, Z)
    x_hat = (x - mean[:, None]) * rstd[:, None]
    normed = x_hat * norm_weight[None, :] + load_vector(norm_bias_ptr, z, Z)[None, :]
    normed = normed.to(dtype)
    tl.store(x_hat_ptr + row + z[None, :], x_hat, mask=inside)
    grad_normed = tl.zeros((BLOCK_P, BLOCK_Z), tl.float32)
    for step in tl.range(0, 2 * ((C + BLOCK_C - 1) // BLOCK_C), num_stages=STAGES):
        channel = step // 2 * BLOCK_C + tl.arange(0, BLOCK_C)
        is_a = step % 2 == 0
        inside_PC = (position[:, None] < num_positions) & (channel < C)[None, :]
        offset = channel[None, :].to(tl.int64) * num_positions + position[:, None]
        grad = tl.load(tl.where(is_a, grad_a_ptr, grad_b_ptr) + offset, mask=inside_PC, other=0.0)
        grad = grad.to(tl.float32)
        value = tl.load(tl.where(is_a, a_ptr, b_ptr) + offset, mask=inside_PC, other=0.0)
        gate_w = tl.where(is_a, a_gate_weight_ptr, b_gate_weight_ptr)
        gate_w = load_matrix(gate_w, channel, z, channel < C, Z)
        weight = load_matrix(tl.where(is_a, a_weight_ptr, b_weight_ptr), channel, z, channel < C, Z)
        opened = tl.dot(normed, tl.trans(gate_w), input_precision=PRECISION)
        opened += load_vector(tl.where(is_a, a_gate_bias_ptr, b_gate_bias_ptr), channel, C)[None, :]
        opened = sigmoid(opened)
        # With operand = mask gate value: grad_logit = grad_operand mask value gate (1 - gate).
        grad_value = (grad * opened * mask[:, None]).to(dtype)
        grad_logit = (grad * value.to(tl.float32) * (1.0 - opened)).to(dtype)
        grad_normed = tl.dot(grad_value, weight, grad_normed, input_precision=PRECISION)
        grad_normed = tl.dot(grad_logit, gate_w, grad_normed, input_precision=PRECISION)
        at = grad_values_ptr + tl.where(is_a, 0, 2) * C * tl.cast(num_positions, tl.int64) + offset
        tl.store(at, grad_value, mask=inside_PC)
        tl.store(at + C * tl.cast(num_positions, tl.int64), grad_logit, mask=inside_PC)
    for first in tl.range(0, Z, BLOCK_C, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_C)
        inside_column = (position[:, None] < num_positions) & (column[None, :] < Z)
        grad_logit = tl.load(grad_gate_ptr + row + column[None, :], mask=inside_column, other=0.0)
        weight = load_matrix(gate_weight_ptr, column, z, column < Z, Z)
        grad_normed = tl.dot(grad_logit, weight, grad_normed, input_precision=PRECISION)
    x = tl.load(z_ptr + row + z[None, :], mask=inside, other=0.0).to(tl.float32)
    x_hat = (x - mean[:, None]) * rstd[:, None]
    grad_x = standardise_backward(grad_normed * norm_weight[None, :], x_hat, rstd, Z)
    if through_ptr is not None:
        grad_x += tl.load(through_ptr + row + z[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_z_ptr + row + z[None, :], grad_x, mask=inside)


def projection_forward(
    sizes: Sizes, z: Tensor, mask: Tensor, weights: ProjectionWeights
) -> Projected:
    """Operands, gate, and the statistics of each position."""
    found = Projected.empty(z, sizes.hidden)
    config = sizes.config("projection_forward", BLOCK_C=min(sizes.hidden, sizes.pair))
    triangle_projection_forward_kernel[(triton.cdiv(sizes.positions, config["BLOCK_P"]),)](
        z, mask, *weights, *found, sizes.positions,
        BLOCK_Z=block(sizes.pair), **sizes.constants(), **config,
    )  # fmt: skip
    return found


def projection_backward(
    sizes: Sizes, gradients: ProjectionGradients, kept: ProjectionKept, weights: ProjectionWeights
) -> tuple[Tensor, Tensor]:
    """Gradient of z; those of the parameters, one after the other in one vector."""
    z, mask, a, b, mean, rstd = kept
    grad_z, x_hat = torch.empty_like(z), torch.empty_like(z)
    grad_values = z.new_empty(4 * sizes.hidden, sizes.positions)
    config = sizes.config("projection_backward", BLOCK_C=min(sizes.hidden, sizes.pair))
    triangle_projection_backward_kernel[(triton.cdiv(sizes.positions, config["BLOCK_P"]),)](
        *gradients, z, mask, mean, rstd, a, b, weights.norm_weight, weights.norm_bias,
        weights.a, weights.a_gate, weights.a_gate_bias,
        weights.b, weights.b_gate, weights.b_gate_bias, weights.gate,
        grad_z, grad_values, x_hat, sizes.positions,
        BLOCK_Z=block(sizes.pair),
        **sizes.constants(), **config,
    )  # fmt: skip
    return grad_z, projection_gradients(sizes, grad_values, gradients.gate, x_hat, weights)
