"""Backward of global attention in three kernels; each goes once through the rows of its column.

Legend as in `forward`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import SMALL, block
from scalefold_kernels.loads import load_matrix, load_vector
from scalefold_kernels.ops.global_attention.op import Parameters
from scalefold_kernels.ops.global_attention.triton.forward import (
    MEAN_EPS,
    by_head,
    column_number,
    column_start,
    constants,
    gate_parameters,
    gates,
    grid_of,
    head_scale,
    load_kept,
    load_rows,
    load_softmax,
    store_rows,
    strides,
    with_mask,
)
from scalefold_kernels.ops.norm.triton import standardise, standardise_backward
from scalefold_kernels.sums import sum_rows


@triton.jit
def sums_of(ptr, column, C: tl.constexpr, D: tl.constexpr, A: tl.constexpr):
    """Where a column's parts of all parameters' gradients are."""
    return ptr + column * (3 * C + 3 * D * C + 2 * A * C + D)


@triton.jit
def load_heads(
    softmax_ptr, direction_ptr, attended_ptr, grad_attended_ptr, norm_weight, column, h, c,
    H: tl.constexpr, C: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """What `softmax_again` needs of a column's heads."""
    highest, weights = load_softmax(softmax_ptr, column, h, H)
    attended = load_matrix(attended_ptr + column * H * C, h, c, h < H, C)
    direction = load_matrix(direction_ptr + column * H * C, h, c, h < H, C)
    grad_attended = load_matrix(grad_attended_ptr + column * H * C, h, c, h < H, C)
    delta = tl.sum(grad_attended * attended, 1)
    along = (direction * norm_weight[None, :]).to(dtype)
    return along, grad_attended.to(dtype), highest, weights, delta


@triton.jit
def softmax_again(
    x_hat, along, towards, kept, rows, num_rows, highest, weights, delta, PRECISION: tl.constexpr
):
    """Weights of a block of rows and the gradients of their logits, (S, H)."""
    logit = tl.dot(x_hat, along.T, input_precision=PRECISION)
    logit = with_mask(logit, kept, rows, num_rows)
    weight = tl.exp(logit - highest[None, :]) * (1.0 / weights)[None, :]
    grad_weight = tl.dot(x_hat, towards.T, input_precision=PRECISION)
    return weight, weight * (grad_weight - delta[None, :])


@triton.jit
def shared(vectors, rows, a, d, A: tl.constexpr):
    """Gradient (A, C) of a weight that heads share, from (H, D) zero outside each head's channels,
    and (H, C).
    """
    apart = tl.dot(tl.trans(vectors), rows, input_precision=SMALL)
    same = tl.where((d % A)[None, :] == a[:, None], 1.0, 0.0)
    return tl.dot(same, apart, input_precision=SMALL)


@triton.jit
def global_attention_values_kernel(
    grad_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, value_weight_ptr, gate_weight_ptr,
    gate_bias_ptr, out_weight_ptr, result_ptr, attended_ptr, grad_attended_ptr, sums_ptr,
    grad_b, grad_s, grad_n, x_b, x_s, x_n, num_rows,
    C: tl.constexpr, D: tl.constexpr, A: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_A: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """First kernel of backward: gradients of ``attended``, and of the weights of values and output.

    ``sums`` of a column are its parts of all parameters' gradients one after the other: the norm's
    weight and bias, weights of query, key, value and gate, the gate's bias, the output's weight
    and bias. ``grad_attended`` (H, C), float32.
    """
    H: tl.constexpr = D // A
    block, h, a = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_A)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    member = (d // A)[None, :] == h[:, None]
    column = column_number()
    x_ptr += column_start(x_b, x_n)
    grad_ptr += column_start(grad_b, grad_n)
    dtype = x_ptr.dtype.element_ty
    norm_weight = load_vector(norm_weight_ptr, c, C)
    norm_bias = load_vector(norm_bias_ptr, c, C)
    gate_weight, gate_bias = gate_parameters(
        gate_weight_ptr, gate_bias_ptr, norm_weight, norm_bias, c, d, C, D, dtype
    )
    products = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
    grad_out_bias = tl.zeros((BLOCK_C,), tl.float32)
    for start in tl.range(0, num_rows, BLOCK_S, num_stages=STAGES):
        rows = start + block
        x = load_rows(x_ptr, x_s, rows, num_rows, c, C).to(tl.float32)
        x_hat = standardise(x, c < C, C, BLOCK_C)[0].to(dtype)
        gate = gates(x_hat, gate_weight, gate_bias, PRECISION)
        grad = load_rows(grad_ptr, grad_s, rows, num_rows, c, C)
        products = tl.dot(grad.T, gate.to(dtype), products, input_precision=PRECISION)
        grad_out_bias += tl.sum(grad.to(tl.float32), 0)

    sums_ptr = sums_of(sums_ptr, column, C, D, A)
    value_sums = sums_ptr + 2 * C + D * C + A * C
    out_sums = value_sums + A * C + D * C + D
    result = load_vector(result_ptr + column * D, d, D)
    at, inside = c[:, None] * D + d[None, :], (c < C)[:, None] & (d < D)[None, :]
    tl.store(out_sums + at, products * result[None, :], mask=inside)
    tl.store(out_sums + C * D + c, grad_out_bias, mask=c < C)
    out_weight = load_matrix(out_weight_ptr, c, d, c < C, D).to(tl.float32)
    grad_result = by_head(tl.sum(out_weight * products, 0), member)

    value_weight = load_matrix(value_weight_ptr, d % A, c, d < D, C).to(tl.float32)
    grad_rows = tl.dot(grad_result, value_weight, input_precision=SMALL)
    at, inside = h[:, None] * C + c[None, :], (h < H)[:, None] & (c < C)[None, :]
    place = column * H * C + at
    tl.store(grad_attended_ptr + place, grad_rows * norm_weight[None, :], mask=inside)
    attended = tl.load(attended_ptr + place, mask=inside, other=0.0)
    tl.store(sums_ptr + c, tl.sum(grad_rows * attended, 0), mask=c < C)
    tl.store(sums_ptr + C + c, tl.sum(grad_rows, 0), mask=c < C)
    head_rows = attended * norm_weight[None, :] + norm_bias[None, :]
    at, inside = a[:, None] * C + c[None, :], (a < A)[:, None] & (c < C)[None, :]
    tl.store(value_sums + at, shared(grad_result, head_rows, a, d, A), mask=inside)


@triton.jit
def global_attention_query_kernel(
    x_ptr, mask_ptr, norm_weight_ptr, norm_bias_ptr, query_weight_ptr, key_weight_ptr,
    mean_ptr, query_ptr, softmax_ptr, direction_ptr, attended_ptr, grad_attended_ptr,
    grad_mean_ptr, sums_ptr,
    x_b, x_s, x_n, mask_b, mask_s, mask_n, num_rows, scale,
    C: tl.constexpr, D: tl.constexpr, A: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_A: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Second kernel of backward: gradients of the weights of queries and keys, and ``grad_mean``
    (C), what each row that takes part gets through the mean.
    """
    H: tl.constexpr = D // A
    block, h, a = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_A)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    member = (d // A)[None, :] == h[:, None]
    column = column_number()
    x_ptr += column_start(x_b, x_n)
    mask_ptr += column_start(mask_b, mask_n)
    dtype = x_ptr.dtype.element_ty
    norm_weight = load_vector(norm_weight_ptr, c, C)
    along, towards, highest, weights, delta = load_heads(
        softmax_ptr, direction_ptr, attended_ptr, grad_attended_ptr, norm_weight, column, h, c,
        H, C, dtype,
    )  # fmt: skip
    direction = load_matrix(direction_ptr + column * H * C, h, c, h < H, C)
    grad_direction = tl.zeros((BLOCK_H, BLOCK_C), tl.float32)
    count = tl.zeros((BLOCK_S,), tl.float32)
    for start in tl.range(0, num_rows, BLOCK_S, num_stages=STAGES):
        rows = start + block
        kept = load_kept(mask_ptr, mask_s, rows, num_rows)
        count += kept
        x = load_rows(x_ptr, x_s, rows, num_rows, c, C).to(tl.float32)
        x_hat = standardise(x, c < C, C, BLOCK_C)[0].to(dtype)
        _, grad_logit = softmax_again(
            x_hat, along, towards, kept, rows, num_rows, highest, weights, delta, PRECISION
        )
        grad_logit = grad_logit.to(dtype)
        grad_direction = tl.dot(grad_logit.T, x_hat, grad_direction, input_precision=PRECISION)

    sums_ptr = sums_of(sums_ptr, column, C, D, A)
    norm_weight_sum = load_vector(sums_ptr, c, C) + tl.sum(grad_direction * direction, 0)
    grad_direction *= norm_weight[None, :]
    query = by_head(load_vector(query_ptr + column * D, d, D), member)
    at, inside = a[:, None] * C + c[None, :], (a < A)[:, None] & (c < C)[None, :]
    of_key = shared(query, grad_direction, a, d, A)
    tl.store(sums_ptr + 2 * C + D * C + at, of_key, mask=inside)
    key_weight = load_matrix(key_weight_ptr, d % A, c, d < D, C).to(tl.float32)
    grad_query = tl.dot(grad_direction, key_weight.T, input_precision=SMALL)
    grad_query = tl.sum(tl.where(member, grad_query, 0.0), 0) * scale

    number = tl.sum(count, 0)
    share = number / (number + MEAN_EPS)
    mean = load_vector(mean_ptr + column * C, c, C)
    row = mean * norm_weight + load_vector(norm_bias_ptr, c, C) * share
    at, inside = d[:, None] * C + c[None, :], (d < D)[:, None] & (c < C)[None, :]
    tl.store(sums_ptr + 2 * C + at, grad_query[:, None] * row[None, :], mask=inside)
    query_weight = load_matrix(query_weight_ptr, d, c, d < D, C).to(tl.float32)
    grad_row = tl.sum(query_weight * grad_query[:, None], 0)
    tl.store(sums_ptr + c, norm_weight_sum + grad_row * mean, mask=c < C)
    norm_bias_sum = load_vector(sums_ptr + C, c, C) + grad_row * share
    tl.store(sums_ptr + C + c, norm_bias_sum, mask=c < C)
    of_mean = grad_row * norm_weight / (number + MEAN_EPS)
    tl.store(grad_mean_ptr + column * C + c, of_mean, mask=c < C)


@triton.jit
def global_attention_rows_kernel(
    grad_ptr, x_ptr, mask_ptr, norm_weight_ptr, norm_bias_ptr, gate_weight_ptr, gate_bias_ptr,
    out_weight_ptr, result_ptr, softmax_ptr, direction_ptr, attended_ptr, grad_attended_ptr,
    grad_mean_ptr, grad_x_ptr, sums_ptr,
    grad_b, grad_s, grad_n, x_b, x_s, x_n, mask_b, mask_s, mask_n, out_b, out_s, out_n, num_rows,
    C: tl.constexpr, D: tl.constexpr, A: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Third kernel of backward: gradients of x, and of the weights of gate and norm."""
    H: tl.constexpr = D // A
    block, h = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_H)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    column = column_number()
    x_ptr += column_start(x_b, x_n)
    mask_ptr += column_start(mask_b, mask_n)
    grad_ptr += column_start(grad_b, grad_n)
    grad_x_ptr += column_start(out_b, out_n)
    dtype = x_ptr.dtype.element_ty
    norm_weight = load_vector(norm_weight_ptr, c, C)
    norm_bias = load_vector(norm_bias_ptr, c, C)
    gate_weight, gate_bias = gate_parameters(
        gate_weight_ptr, gate_bias_ptr, norm_weight, norm_bias, c, d, C, D, dtype
    )
    result = load_vector(result_ptr + column * D, d, D)
    out_weight = load_matrix(out_weight_ptr, c, d, c < C, D).to(tl.float32) * result[None, :]
    out_weight = out_weight.to(dtype)
    along, towards, highest, weights, delta = load_heads(
        softmax_ptr, direction_ptr, attended_ptr, grad_attended_ptr, norm_weight, column, h, c,
        H, C, dtype,
    )  # fmt: skip
    of_gate = tl.zeros((BLOCK_D, BLOCK_C), tl.float32)
    of_gate_bias = tl.zeros((BLOCK_D,), tl.float32)
    for start in tl.range(0, num_rows, BLOCK_S, num_stages=STAGES):
        rows = start + block
        kept = load_kept(mask_ptr, mask_s, rows, num_rows)
        x = load_rows(x_ptr, x_s, rows, num_rows, c, C).to(tl.float32)
        grad = load_rows(grad_ptr, grad_s, rows, num_rows, c, C)
        x_hat, _, rstd = standardise(x, c < C, C, BLOCK_C)
        x_hat = x_hat.to(dtype)
        gate = gates(x_hat, gate_weight, gate_bias, PRECISION)
        grad_gate = tl.dot(grad, out_weight, input_precision=PRECISION)
        grad_gate *= gate * (1.0 - gate)
        of_gate_bias += tl.sum(grad_gate, 0)
        grad_gate = grad_gate.to(dtype)
        of_gate = tl.dot(grad_gate.T, x_hat, of_gate, input_precision=PRECISION)
        weight, grad_logit = softmax_again(
            x_hat, along, towards, kept, rows, num_rows, highest, weights, delta, PRECISION
        )
        # Read here, as the norm's parameters are again below: held, they would not fit.
        grad_mean = load_vector(grad_mean_ptr + column * C, c, C)
        grad_hat = kept[:, None] * grad_mean[None, :]
        grad_hat = tl.dot(grad_gate, gate_weight, grad_hat, input_precision=PRECISION)
        grad_hat = tl.dot(weight.to(dtype), towards, grad_hat, input_precision=PRECISION)
        grad_hat = tl.dot(grad_logit.to(dtype), along, grad_hat, input_precision=PRECISION)
        grad_x = standardise_backward(grad_hat, x_hat.to(tl.float32), rstd, C)
        grad_x += grad.to(tl.float32)
        store_rows(grad_x_ptr, grad_x, out_s, rows, num_rows, c, C)

    sums_ptr = sums_of(sums_ptr, column, C, D, A)
    gate_sums = sums_ptr + 2 * C + D * C + 2 * A * C
    gate_weight = load_matrix(gate_weight_ptr, d, c, d < D, C).to(tl.float32)
    norm_weight_sum = load_vector(sums_ptr, c, C) + tl.sum(gate_weight * of_gate, 0)
    norm_bias_sum = tl.sum(gate_weight * of_gate_bias[:, None], 0)
    norm_bias_sum += load_vector(sums_ptr + C, c, C)
    tl.store(sums_ptr + c, norm_weight_sum, mask=c < C)
    tl.store(sums_ptr + C + c, norm_bias_sum, mask=c < C)
    norm_weight = load_vector(norm_weight_ptr, c, C)
    norm_bias = load_vector(norm_bias_ptr, c, C)
    of_gate = of_gate * norm_weight[None, :] + of_gate_bias[:, None] * norm_bias[None, :]
    at, inside = d[:, None] * C + c[None, :], (d < D)[:, None] & (c < C)[None, :]
    tl.store(gate_sums + at, of_gate, mask=inside)
    tl.store(gate_sums + D * C + d, of_gate_bias, mask=d < D)


def backward(
    grad: Tensor,
    x: Tensor,
    mask: Tensor,
    parameters: Parameters,
    columns: Sequence[Tensor],
    grad_x: Tensor,
    flat_grad: Tensor,
) -> None:
    """Fill the gradients of x, and of all parameters one after the other."""
    p, grid = parameters, grid_of(x)
    mean, query, result, softmax, direction, attended = columns
    grad_attended, grad_mean = torch.empty_like(attended), torch.empty_like(mean)
    # Each column's part of all parameters' gradients.
    sums = attended.new_empty(x.shape[0] * x.shape[2], flat_grad.numel())
    global_attention_values_kernel[grid](
        grad, x, p.norm_weight, p.norm_bias, p.value_weight, p.gate_weight, p.gate_bias,
        p.out_weight, result, attended, grad_attended, sums, *strides(grad, x), x.shape[1],
        BLOCK_A=block(p.value_weight.shape[0]), **constants("values", x, p),
    )  # fmt: skip
    global_attention_query_kernel[grid](
        x, mask, p.norm_weight, p.norm_bias, p.query_weight, p.key_weight, mean, query, softmax,
        direction, attended, grad_attended, grad_mean, sums, *strides(x, mask), x.shape[1],
        head_scale(p), BLOCK_A=block(p.key_weight.shape[0]), **constants("query", x, p),
    )  # fmt: skip
    global_attention_rows_kernel[grid](
        grad, x, mask, p.norm_weight, p.norm_bias, p.gate_weight, p.gate_bias, p.out_weight,
        result, softmax, direction, attended, grad_attended, grad_mean, grad_x, sums,
        *strides(grad, x, mask, grad_x), x.shape[1], **constants("rows", x, p),
    )  # fmt: skip
    sum_rows(sums, x.dtype, flat_grad)
