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
    z, mask, norm_weight, norm_bias,
    a_weight, a_bias, a_gate_weight, a_gate_bias,
    b_weight, b_bias, b_gate_weight, b_gate_bias,
    gate_weight, gate_bias,
    a, b, gate, mean, rstd, num_positions,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    zed = tl.arange(0, BLOCK_Z)
    inside = (position[:, None] < num_positions) & (zed[None, :] < Z)
    row = position.to(tl.int64)[:, None] * Z
    x = tl.load(z + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    mask_P = tl.load(mask + position, mask=position < num_positions, other=0.0).to(tl.float32)
    x_hat, mean_P, rstd_P = standardise(x, Z, BLOCK_Z)
    tl.store(mean + position, mean_P, mask=position < num_positions)
    tl.store(rstd + position, rstd_P, mask=position < num_positions)
    normed = x_hat * load_vector(norm_weight, zed, Z)[None, :]
    normed = (normed + load_vector(norm_bias, zed, Z)[None, :]).to(z.dtype.element_ty)
    for step in tl.range(0, 2 * ((C + BLOCK_C - 1) // BLOCK_C), num_stages=STAGES):
        channel = step // 2 * BLOCK_C + tl.arange(0, BLOCK_C)
        is_a = step % 2 == 0
        weight = tl.where(is_a, a_weight, b_weight)
        gate_w = tl.where(is_a, a_gate_weight, b_gate_weight)
        gate_w = tl.trans(load_matrix(gate_w, channel, zed, channel < C, Z))
        opened = tl.dot(normed, gate_w, input_precision=PRECISION)
        w = tl.trans(load_matrix(weight, channel, zed, channel < C, Z))
        value = tl.dot(normed, w, input_precision=PRECISION)
        opened += load_vector(tl.where(is_a, a_gate_bias, b_gate_bias), channel, C)[None, :]
        value += load_vector(tl.where(is_a, a_bias, b_bias), channel, C)[None, :]
        value *= sigmoid(opened) * mask_P[:, None]
        inside_PC = (position[:, None] < num_positions) & (channel < C)[None, :]
        at = (
            tl.where(is_a, a, b) + channel[None, :].to(tl.int64) * num_positions + position[:, None]
        )
        tl.store(at, value.to(z.dtype.element_ty), mask=inside_PC)
    for first in tl.range(0, Z, BLOCK_C, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_C)
        w = load_matrix(gate_weight, column, zed, column < Z, Z)
        logit = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        logit += load_vector(gate_bias, column, Z)[None, :]
        inside_column = (position[:, None] < num_positions) & (column[None, :] < Z)
        logit = logit.to(gate.dtype.element_ty)
        tl.store(gate + row + column[None, :], logit, mask=inside_column)


@triton.jit
def triangle_projection_backward_kernel(
    grad_a, grad_b, grad_gate, through, z, mask, mean, rstd, a, b, norm_weight, norm_bias,
    a_weight, a_gate_weight, a_gate_bias, b_weight, b_gate_weight, b_gate_bias, gate_weight,
    grad_z, grad_values, x_hat, num_positions,
    HAS_THROUGH: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of z; grad_values (4, C, P) and x_hat (P, Z) for those of the weights.

    through: gradient of z elsewhere, added here. grad_values: gradients of a's value and its gate's
    logit, then of b's.
    """
    dtype: tl.constexpr = z.dtype.element_ty
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    zed = tl.arange(0, BLOCK_Z)
    inside = (position[:, None] < num_positions) & (zed[None, :] < Z)
    row = position.to(tl.int64)[:, None] * Z
    x = tl.load(z + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    mean_P = tl.load(mean + position, mask=position < num_positions, other=0.0)
    rstd_P = tl.load(rstd + position, mask=position < num_positions, other=0.0)
    mask_P = tl.load(mask + position, mask=position < num_positions, other=0.0).to(tl.float32)
    norm_weight_Z = load_vector(norm_weight, zed, Z)
    x_hat_PZ = (x - mean_P[:, None]) * rstd_P[:, None]
    normed = x_hat_PZ * norm_weight_Z[None, :] + load_vector(norm_bias, zed, Z)[None, :]
    normed = normed.to(dtype)
    tl.store(x_hat + row + zed[None, :], x_hat_PZ.to(dtype), mask=inside)
    grad_normed = tl.zeros((BLOCK_P, BLOCK_Z), tl.float32)
    for step in tl.range(0, 2 * ((C + BLOCK_C - 1) // BLOCK_C), num_stages=STAGES):
        channel = step // 2 * BLOCK_C + tl.arange(0, BLOCK_C)
        is_a = step % 2 == 0
        inside_PC = (position[:, None] < num_positions) & (channel < C)[None, :]
        offset = channel[None, :].to(tl.int64) * num_positions + position[:, None]
        grad = tl.load(tl.where(is_a, grad_a, grad_b) + offset, mask=inside_PC, other=0.0)
        grad = grad.to(tl.float32)
        value = tl.load(tl.where(is_a, a, b) + offset, mask=inside_PC, other=0.0)
        gate_w = tl.where(is_a, a_gate_weight, b_gate_weight)
        gate_w = load_matrix(gate_w, channel, zed, channel < C, Z)
        w = load_matrix(tl.where(is_a, a_weight, b_weight), channel, zed, channel < C, Z)
        opened = tl.dot(normed, tl.trans(gate_w), input_precision=PRECISION)
        opened += load_vector(tl.where(is_a, a_gate_bias, b_gate_bias), channel, C)[None, :]
        opened = sigmoid(opened)
        # With operand = mask gate value: grad_logit = grad_operand mask value gate (1 - gate).
        grad_value = (grad * opened * mask_P[:, None]).to(dtype)
        grad_logit = (grad * value.to(tl.float32) * (1.0 - opened)).to(dtype)
        grad_normed = tl.dot(grad_value, w, grad_normed, input_precision=PRECISION)
        grad_normed = tl.dot(grad_logit, gate_w, grad_normed, input_precision=PRECISION)
        at = grad_values + tl.where(is_a, 0, 2) * C * tl.cast(num_positions, tl.int64) + offset
        tl.store(at, grad_value, mask=inside_PC)
        tl.store(at + C * tl.cast(num_positions, tl.int64), grad_logit, mask=inside_PC)
    for first in tl.range(0, Z, BLOCK_C, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_C)
        inside_column = (position[:, None] < num_positions) & (column[None, :] < Z)
        grad_logit = tl.load(grad_gate + row + column[None, :], mask=inside_column, other=0.0)
        w = load_matrix(gate_weight, column, zed, column < Z, Z)
        grad_normed = tl.dot(grad_logit, w, grad_normed, input_precision=PRECISION)
    x = tl.load(z + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    x_hat_PZ = (x - mean_P[:, None]) * rstd_P[:, None]
    grad_x = standardise_backward(grad_normed * norm_weight_Z[None, :], x_hat_PZ, rstd_P, Z)
    if HAS_THROUGH:
        grad_x += tl.load(through + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_z + row + zed[None, :], grad_x.to(dtype), mask=inside)


def projection_forward(
    sizes: Sizes, z: Tensor, mask: Tensor, weights: ProjectionWeights
) -> Projected:
    """Operands, gate, and the statistics of each position."""
    found = Projected.empty(z, sizes.hidden)
    tile = sizes.tile("projection_forward", BLOCK_C=min(sizes.hidden, sizes.pair))
    triangle_projection_forward_kernel[(triton.cdiv(sizes.positions, tile["BLOCK_P"]),)](
        z, mask, *weights, *found, sizes.positions,
        BLOCK_Z=block(sizes.pair), **sizes.constants(), **tile,
    )  # fmt: skip
    return found


def projection_backward(
    sizes: Sizes, gradients: ProjectionGradients, kept: ProjectionKept, weights: ProjectionWeights
) -> tuple[Tensor, Tensor]:
    """Gradient of z; those of the parameters, one after the other in one vector."""
    z, mask, a, b, mean, rstd = kept
    grad_z, x_hat = torch.empty_like(z), torch.empty_like(z)
    grad_values = z.new_empty(4 * sizes.hidden, sizes.positions)
    tile = sizes.tile("projection_backward", BLOCK_C=min(sizes.hidden, sizes.pair))
    triangle_projection_backward_kernel[(triton.cdiv(sizes.positions, tile["BLOCK_P"]),)](
        *gradients, z, mask, mean, rstd, a, b, weights.norm_weight, weights.norm_bias,
        weights.a, weights.a_gate, weights.a_gate_bias,
        weights.b, weights.b_gate, weights.b_gate_bias, weights.gate,
        grad_z, grad_values, x_hat, sizes.positions,
        HAS_THROUGH=gradients.through is not None, BLOCK_Z=block(sizes.pair),
        **sizes.constants(), **tile,
    )  # fmt: skip
    return grad_z, projection_gradients(sizes, grad_values, gradients.gate, x_hat, weights)
