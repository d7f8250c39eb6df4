"""Gradient of attention's gate on any GPU, which comes before the other gradients."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.ops.attention.arguments import Inputs, Kept
from scalefold_kernels.ops.attention.triton.parts import sigmoid, strides, tile_of

SMALLEST = tl.constexpr(2.0**-126)
"""Of normal numbers: what a share that vanishes is taken for, so that it can be divided by."""


@triton.jit
def line_start(strides, batch, row, query):
    """Offset of a query's channels, which lie side by side, head by head."""
    start = batch.to(tl.int64) * strides[0] + row.to(tl.int64) * strides[1]
    return start + query.to(tl.int64) * strides[2]


@triton.jit
def backward_gate_kernel(
    gate, out, rest, grad_out, grad_gate, grad_ungated, delta, q, scaled_q,
    gate_strides, out_strides, rest_strides, grad_out_strides, grad_gate_strides,
    grad_ungated_strides, q_strides, scaled_q_strides, delta_stride,
    num_rows, num_heads, num_queries, scale,
    C: tl.constexpr, HAS_GATE: tl.constexpr, HAS_REST: tl.constexpr, SCALE_Q: tl.constexpr,
    BIAS_SCALE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Gradients of the gate and of the ungated output; delta, the sum over C of their products.

    From the gated output: with s = sigmoid(gate) and out = s * o,
    d gate = grad_out * o * s (1 - s) = grad_out * out * (1 - s), and d o = grad_out * s. The
    softmax's delta = sum(o * d o) takes d o as it is rounded for the other kernels, which subtract
    delta from products of that. ``rest`` is added to ``out``.

    One CTA: a block of queries of one row, with all their heads as they lie in memory; in delta
    queries are side by side. ``scaled_q`` gets the queries as forward multiplied them.
    """
    batch = tl.program_id(1)
    num_blocks = tl.cdiv(num_queries, BLOCK_Q)
    row = tl.program_id(0) // num_blocks
    queries = tl.program_id(0) % num_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    heads = tl.arange(0, BLOCK_H)
    # Heads and channels as one dimension: lanes go through the line of a query.
    PADDED: tl.constexpr = triton.next_power_of_2(C)
    at = tl.arange(0, BLOCK_H * PADDED)
    inside = at < num_heads * PADDED
    if C < PADDED:
        inside &= at % PADDED < C
        at = at // PADDED * C + at % PADDED
    query, at = queries[:, None], at[None, :]
    inside = (query < num_queries) & inside[None, :]
    offsets = line_start(out_strides, batch, row, query) + at
    o = tl.load(out + offsets, mask=inside, other=0.0)
    offsets = line_start(grad_out_strides, batch, row, query) + at
    grad = tl.load(grad_out + offsets, mask=inside, other=0.0).to(tl.float32)
    o = o.to(tl.float32)
    if HAS_REST:
        place = tl.arange(0, BLOCK_H * PADDED)
        places = place // PADDED * rest_strides[3] + place % PADDED
        offsets = line_start(rest_strides, batch, row, query) + places[None, :]
        o += tl.load(rest + offsets, mask=inside, other=0.0).to(tl.float32)
    product = o * grad
    if HAS_GATE:
        offsets = line_start(gate_strides, batch, row, query) + at
        share = sigmoid(tl.load(gate + offsets, mask=inside, other=0.0))
        grad_share = (product * (1.0 - share)).to(grad_gate.dtype.element_ty)
        offsets = line_start(grad_gate_strides, batch, row, query) + at
        tl.store(grad_gate + offsets, grad_share, mask=inside)
        grad = (grad * share).to(grad_ungated.dtype.element_ty)
        offsets = line_start(grad_ungated_strides, batch, row, query) + at
        tl.store(grad_ungated + offsets, grad, mask=inside)
        product = o * (grad.to(tl.float32) / tl.maximum(share, SMALLEST))
    delta += (batch * num_rows + row).to(tl.int64) * num_heads * delta_stride
    exists = (query < num_queries) & (heads[None, :] < num_heads)
    sums = tl.sum(product.reshape(BLOCK_Q, BLOCK_H, PADDED), 2)
    tl.store(delta + heads[None, :] * delta_stride + query, sums, mask=exists)
    if SCALE_Q:
        offsets = line_start(q_strides, batch, row, query) + at
        scaled = tl.load(q + offsets, mask=inside, other=0.0).to(tl.float32)
        scaled *= scale * (1.0 / BIAS_SCALE)
        offsets = line_start(scaled_q_strides, batch, row, query) + at
        tl.store(scaled_q + offsets, scaled.to(scaled_q.dtype.element_ty), mask=inside)


def backward_gate(
    inputs: Inputs,
    kept: Kept,
    grad_out: Tensor,
    grad_gate: Tensor | None,
    grad_ungated: Tensor | None,
    delta: Tensor,
    scaled_q: Tensor | None = None,
) -> None:
    """Fill ``delta`` and, where there is a gate, the gradients of gate and ungated output.

    And ``scaled_q``, if it is wanted: the queries as forward multiplied them.
    """
    gate = inputs.gate
    sizes = tile_of("attention_backward_gate", inputs)
    heads = triton.next_power_of_2(inputs.num_heads)
    block_q = max(1, sizes.pop("BLOCK") // (heads * triton.next_power_of_2(inputs.channels)))
    gate = None if gate is None else heads_together(gate)
    q = None if scaled_q is None else heads_together(inputs.q)
    blocks = triton.cdiv(inputs.num_queries, block_q)
    backward_gate_kernel[(blocks * inputs.num_rows, inputs.batch)](
        gate, kept.out, kept.rest, grad_out, grad_gate, grad_ungated, delta, q, scaled_q,
        *map(strides, (gate, kept.out, kept.rest, grad_out, grad_gate, grad_ungated, q, scaled_q)),
        delta.stride(2), inputs.num_rows, inputs.num_heads, inputs.num_queries, inputs.scale,
        C=inputs.channels, HAS_GATE=gate is not None, HAS_REST=kept.rest is not None,
        SCALE_Q=scaled_q is not None, BIAS_SCALE=inputs.bias_scale, BLOCK_Q=block_q, BLOCK_H=heads,
        **sizes,
    )  # fmt: skip


def heads_together(x: Tensor) -> Tensor:
    """Heads one after the other in memory: a position's channels are read as one line."""
    return x if x.stride()[3:] == (x.shape[4], 1) else x.contiguous()
