"""Global attention: LayerNorm, one mean query a column, gate, output and residual.

A CTA has a column of the MSA and goes through its rows several times, a block at a time; after
the first time they come from the cache. Neither queries nor keys nor values of rows are made: with
x normalised (x_hat), the mean query is that of the mean row, the logits of head h are
``x_hat . (w * U_h)`` with ``U_h = q_h Wk`` (what the norm's bias adds is the same for all rows),
and the head's result is ``Wv (w * P_h + b)`` with ``P_h`` the mean of x_hat under the softmax.

Legend: S rows, C channels, H heads, A channels of a head, D = H A of all heads; w and b are the
norm's weight and bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import SMALL, block, precision
from scalefold_kernels.loads import load_matrix, load_vector
from scalefold_kernels.ops.global_attention.op import Parameters
from scalefold_kernels.ops.norm.triton import standardise
from scalefold_kernels.tiles import config_for

MASKED_LOGIT = tl.constexpr(1e9)
"""The constant of `scalefold.ops.attention`."""

MEAN_EPS = tl.constexpr(1e-10)
"""The constant of `scalefold.ops.global_attention`."""


@triton.jit
def column_number():
    """Place of the CTA's column among those of all samples."""
    return tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)


@triton.jit
def column_start(stride_b, stride_n):
    """Offset of the CTA's column."""
    return tl.program_id(1).to(tl.int64) * stride_b + tl.program_id(0).to(tl.int64) * stride_n


@triton.jit
def load_rows(ptr, stride, rows, num_rows, c, C: tl.constexpr):
    """A block of rows of the column; 0 outside."""
    at = rows.to(tl.int64)[:, None] * stride + c[None, :]
    return tl.load(ptr + at, mask=(rows < num_rows)[:, None] & (c < C)[None, :], other=0.0)


@triton.jit
def store_rows(ptr, value, stride, rows, num_rows, c, C: tl.constexpr):
    """A block of rows of the column."""
    at = rows.to(tl.int64)[:, None] * stride + c[None, :]
    inside = (rows < num_rows)[:, None] & (c < C)[None, :]
    tl.store(ptr + at, value, mask=inside)


@triton.jit
def load_kept(mask_ptr, stride, rows, num_rows):
    """The mask of a block of rows; 0 beyond the last."""
    at = rows.to(tl.int64) * stride
    return tl.load(mask_ptr + at, mask=rows < num_rows, other=0.0).to(tl.float32)


@triton.jit
def with_mask(logit, kept, rows, num_rows):
    """Add the mask to logits (S, H); rows beyond the last get weight 0."""
    logit += ((kept - 1.0) * MASKED_LOGIT)[:, None]
    return tl.where((rows < num_rows)[:, None], logit, float("-inf"))


@triton.jit
def by_head(vector, member):
    """(D,) as (H, D), zero outside each head's own channels."""
    return tl.where(member, vector[None, :], 0.0)


@triton.jit
def gate_parameters(weight_ptr, bias_ptr, norm_weight, norm_bias, c, d, C: tl.constexpr,
                    D: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Weight and bias of the gate as a function of x_hat."""
    weight = load_matrix(weight_ptr, d, c, d < D, C).to(tl.float32)
    bias = load_vector(bias_ptr, d, D) + tl.sum(weight * norm_bias[None, :], 1)
    return (weight * norm_weight[None, :]).to(dtype), bias


@triton.jit
def gates(x_hat, gate_weight, gate_bias, PRECISION: tl.constexpr):
    """(S, D)."""
    return tl.sigmoid(tl.dot(x_hat, gate_weight.T, input_precision=PRECISION) + gate_bias[None, :])


@triton.jit
def load_softmax(ptr, column, h, H: tl.constexpr):
    """Largest logit and sum of each head."""
    highest = load_vector(ptr + column * 2 * H, h, H)
    return highest, tl.load(ptr + (column * 2 + 1) * H + h, mask=h < H, other=1.0)


def grid_of(x: Tensor) -> tuple[int, int]:
    """A CTA a column."""
    return x.shape[2], x.shape[0]


def head_scale(parameters: Parameters) -> float:
    """What queries are multiplied by."""
    return float(parameters.key_weight.shape[0] ** -0.5)


def constants(kernel: str, x: Tensor, parameters: Parameters) -> dict[str, int | float | str]:
    """Sizes and the configuration, as all kernels take them."""
    _, rows, _, channels = x.shape
    every, head = parameters.query_weight.shape[0], parameters.key_weight.shape[0]
    return {
        "C": channels,
        "D": every,
        "A": head,
        "PRECISION": precision(x.dtype),
        "BLOCK_C": block(channels),
        "BLOCK_D": block(every),
        "BLOCK_H": block(every // head),
        **config_for(f"global_attention_{kernel}", x, S=rows, C=channels, D=every),
    }


def strides(*tensors: Tensor) -> list[int]:
    """Strides of samples, rows and columns."""
    return [stride for x in tensors for stride in x.stride()[:3]]


@triton.jit
def global_attention_forward_kernel(
    x_ptr, mask_ptr, norm_weight_ptr, norm_bias_ptr, query_weight_ptr, key_weight_ptr,
    value_weight_ptr, gate_weight_ptr, gate_bias_ptr, out_weight_ptr, out_bias_ptr,
    out_ptr, mean_ptr, query_ptr, result_ptr, softmax_ptr, direction_ptr, attended_ptr,
    x_b, x_s, x_n, mask_b, mask_s, mask_n, out_b, out_s, out_n, num_rows, scale,
    C: tl.constexpr, D: tl.constexpr, A: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the output; for backward, store these of each column, in float32.

    They are the masked ``mean`` of x_hat (C), the scaled mean ``query`` and the ``result`` (D), the
    largest logit and sum of the ``softmax`` (2, H), ``direction`` U and ``attended`` P (H, C).
    """
    H: tl.constexpr = D // A
    block, h = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_H)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    member = (d // A)[None, :] == h[:, None]
    column = column_number()
    x_ptr += column_start(x_b, x_n)
    mask_ptr += column_start(mask_b, mask_n)
    out_ptr += column_start(out_b, out_n)
    dtype = x_ptr.dtype.element_ty
    norm_weight = load_vector(norm_weight_ptr, c, C)
    norm_bias = load_vector(norm_bias_ptr, c, C)

    total = tl.zeros((BLOCK_S, BLOCK_C), tl.float32)
    count = tl.zeros((BLOCK_S,), tl.float32)
    for start in tl.range(0, num_rows, BLOCK_S, num_stages=STAGES):
        rows = start + block
        kept = load_kept(mask_ptr, mask_s, rows, num_rows)
        x = load_rows(x_ptr, x_s, rows, num_rows, c, C).to(tl.float32)
        total += standardise(x, c < C, C, BLOCK_C)[0] * kept[:, None]
        count += kept
    number = tl.sum(count, 0)
    mean = tl.sum(total, 0) / (number + MEAN_EPS)
    row = mean * norm_weight + norm_bias * (number / (number + MEAN_EPS))
    query_weight = load_matrix(query_weight_ptr, d, c, d < D, C).to(tl.float32)
    query = tl.sum(query_weight * row[None, :], 1) * scale
    key_weight = load_matrix(key_weight_ptr, d % A, c, d < D, C).to(tl.float32)
    direction = tl.dot(by_head(query, member), key_weight, input_precision=SMALL)
    at = h[:, None] * C + c[None, :]
    inside = (h < H)[:, None] & (c < C)[None, :]
    tl.store(direction_ptr + column * H * C + at, direction, mask=inside)
    along = (direction * norm_weight[None, :]).to(dtype)

    highest = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    weights = tl.zeros((BLOCK_H,), tl.float32)
    attended = tl.zeros((BLOCK_H, BLOCK_C), tl.float32)
    for start in tl.range(0, num_rows, BLOCK_S, num_stages=STAGES):
        rows = start + block
        kept = load_kept(mask_ptr, mask_s, rows, num_rows)
        x = load_rows(x_ptr, x_s, rows, num_rows, c, C).to(tl.float32)
        x_hat = standardise(x, c < C, C, BLOCK_C)[0].to(dtype)
        logit = tl.dot(x_hat, along.T, input_precision=PRECISION)
        logit = with_mask(logit, kept, rows, num_rows)
        higher = tl.maximum(highest, tl.max(logit, 0))
        shrink, weight = tl.exp(highest - higher), tl.exp(logit - higher[None, :])
        weights = weights * shrink + tl.sum(weight, 0)
        attended = tl.dot(
            weight.to(dtype).T, x_hat, attended * shrink[:, None], input_precision=PRECISION
        )
        highest = higher
    attended = attended / weights[:, None]
    rows_of_heads = attended * norm_weight[None, :] + norm_bias[None, :]
    value_weight = load_matrix(value_weight_ptr, d % A, c, d < D, C).to(tl.float32)
    result = tl.dot(rows_of_heads, value_weight.T, input_precision=SMALL)
    result = tl.sum(tl.where(member, result, 0.0), 0)

    tl.store(mean_ptr + column * C + c, mean, mask=c < C)
    tl.store(query_ptr + column * D + d, query, mask=d < D)
    tl.store(result_ptr + column * D + d, result, mask=d < D)
    tl.store(softmax_ptr + column * 2 * H + h, highest, mask=h < H)
    tl.store(softmax_ptr + (column * 2 + 1) * H + h, weights, mask=h < H)
    tl.store(attended_ptr + column * H * C + at, attended, mask=inside)

    gate_weight, gate_bias = gate_parameters(
        gate_weight_ptr, gate_bias_ptr, norm_weight, norm_bias, c, d, C, D, dtype
    )
    out_weight = load_matrix(out_weight_ptr, c, d, c < C, D).to(tl.float32) * result[None, :]
    out_weight = out_weight.to(dtype)
    out_bias = load_vector(out_bias_ptr, c, C)
    for start in tl.range(0, num_rows, BLOCK_S, num_stages=STAGES):
        rows = start + block
        x = load_rows(x_ptr, x_s, rows, num_rows, c, C).to(tl.float32)
        x_hat = standardise(x, c < C, C, BLOCK_C)[0].to(dtype)
        gate = gates(x_hat, gate_weight, gate_bias, PRECISION)
        out = tl.dot(gate.to(dtype), out_weight.T, input_precision=PRECISION)
        out += x + out_bias[None, :]
        store_rows(out_ptr, out, out_s, rows, num_rows, c, C)


def forward(
    x: Tensor, mask: Tensor, parameters: Parameters, out: Tensor, columns: Sequence[Tensor]
) -> None:
    """Fill ``out``, and what backward needs of columns."""
    global_attention_forward_kernel[grid_of(x)](
        x, mask, *parameters, out, *columns, *strides(x, mask, out), x.shape[1],
        head_scale(parameters), **constants("forward", x, parameters),
    )  # fmt: skip
