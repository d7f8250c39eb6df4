"""Backward of attention on any GPU, in three kernels, four with a bias; legend as in `forward`.

First the gate's gradient and delta, the sums that the softmax's backward needs. Then, from these,
the gradients of the queries, of the keys and values, and of the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.ops.attention.arguments import (
    Call,
    Gradients,
    Kept,
    new_rows,
    new_statistics,
    new_sums,
    transposed,
)
from scalefold_kernels.ops.attention.rest import SHIFTS, with_rest
from scalefold_kernels.ops.attention.triton.forward import (
    LOG2E,
    count_unmasked,
    grid_of,
    load,
    load_bias,
    logits,
    masked_terms,
    place_of_cta,
    row_offset,
    sigmoid,
    store,
    strides,
)

SMALLEST = tl.constexpr(2.0**-126)
"""Smallest normal number: the least sigmoid of a gate, so that it can be divided by."""


@triton.jit
def line_start(strides, batch, row, query):
    """Offset of a query's channels, which are contiguous, head by head."""
    start = batch.to(tl.int64) * strides[0] + row.to(tl.int64) * strides[1]
    return start + query.to(tl.int64) * strides[2]


@triton.jit
def attention_backward_gate_kernel(
    gate_ptr, out_ptr, rest_ptr, grad_out_ptr, grad_gate_ptr, grad_o_ptr, delta_ptr, q_ptr,
    scaled_q_ptr, gate_strides, out_strides, rest_strides, grad_out_strides, grad_gate_strides,
    grad_o_strides, q_strides, scaled_q_strides, delta_stride,
    num_rows, num_heads, num_queries, scale,
    C: tl.constexpr, REST_SHIFT: tl.constexpr, BIAS_SCALE: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Gradients of the gate and of o, the ungated output; delta, the sum over C of their products.

    From the gated output, by the formulas of `docs/kernels.md`. Delta takes grad_o as it is rounded
    for the other kernels, which subtract delta from products of that. ``rest`` is added to ``out``;
    ``REST_SHIFT`` as in `forward`.

    One CTA: a block of queries of one row, with all their heads in memory order; in delta
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
    out = tl.load(out_ptr + offsets, mask=inside, other=0.0)
    offsets = line_start(grad_out_strides, batch, row, query) + at
    grad = tl.load(grad_out_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    out = out.to(tl.float32)
    if REST_SHIFT > 0:
        place = tl.arange(0, BLOCK_H * PADDED)
        places = place // PADDED * rest_strides[3] + place % PADDED
        offsets = line_start(rest_strides, batch, row, query) + places[None, :]
        out = with_rest(out, tl.load(rest_ptr + offsets, mask=inside, other=0), REST_SHIFT)
    product = out * grad
    if gate_ptr is not None:
        offsets = line_start(gate_strides, batch, row, query) + at
        share = sigmoid(tl.load(gate_ptr + offsets, mask=inside, other=0.0))
        grad_share = (product * (1.0 - share)).to(grad_gate_ptr.dtype.element_ty)
        offsets = line_start(grad_gate_strides, batch, row, query) + at
        tl.store(grad_gate_ptr + offsets, grad_share, mask=inside)
        grad = (grad * share).to(grad_o_ptr.dtype.element_ty)
        offsets = line_start(grad_o_strides, batch, row, query) + at
        tl.store(grad_o_ptr + offsets, grad, mask=inside)
        product = out * (grad.to(tl.float32) / tl.maximum(share, SMALLEST))
    delta_ptr += (batch * num_rows + row).to(tl.int64) * num_heads * delta_stride
    exists = (query < num_queries) & (heads[None, :] < num_heads)
    sums = tl.sum(product.reshape(BLOCK_Q, BLOCK_H, PADDED), 2)
    tl.store(delta_ptr + heads[None, :] * delta_stride + query, sums, mask=exists)
    if scaled_q_ptr is not None:
        offsets = line_start(q_strides, batch, row, query) + at
        scaled = tl.load(q_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        scaled *= scale * (1.0 / BIAS_SCALE)
        offsets = line_start(scaled_q_strides, batch, row, query) + at
        tl.store(scaled_q_ptr + offsets, scaled, mask=inside)


def backward_gate(
    call: Call,
    kept: Kept,
    grad_out: Tensor,
    grad_gate: Tensor | None,
    grad_o: Tensor | None,
    delta: Tensor,
    scaled_q: Tensor | None = None,
) -> None:
    """Fill ``delta`` and, where there is a gate, the gradients of gate and ungated output.

    And ``scaled_q``, unless it is None: the queries as forward multiplied them.
    """
    gate = call.gate
    config = call.config("attention_backward_gate")
    heads = triton.next_power_of_2(call.num_heads)
    block_q = max(1, config.pop("BLOCK") // (heads * triton.next_power_of_2(call.channels)))
    gate = None if gate is None else heads_together(gate)
    q = None if scaled_q is None else heads_together(call.q)
    blocks = triton.cdiv(call.num_queries, block_q)
    attention_backward_gate_kernel[(blocks * call.num_rows, call.batch)](
        gate, kept.out, kept.rest, grad_out, grad_gate, grad_o, delta, q, scaled_q,
        *map(strides, (gate, kept.out, kept.rest, grad_out, grad_gate, grad_o, q, scaled_q)),
        delta.stride(2), call.num_rows, call.num_heads, call.num_queries, call.scale,
        C=call.channels, REST_SHIFT=0 if kept.rest is None else SHIFTS[kept.out.dtype],
        BIAS_SCALE=call.bias_scale, BLOCK_Q=block_q, BLOCK_H=heads, **config,
    )  # fmt: skip


def heads_together(x: Tensor) -> Tensor:
    """Heads one after the other in memory: a position's channels are read as one line."""
    return x if x.stride()[3:] == (x.shape[4], 1) else x.contiguous()


@triton.jit
def load_queries(
    q_ptr, grad_o_ptr, lse_ptr, delta_ptr, q_stride, grad_o_stride, first, count, scale,
    C: tl.constexpr, BIAS_SCALE: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """A block of a row's queries, scaled; gradient of their result, and statistics.

    Beyond the last query every weight is 0.
    """
    queries = first + tl.arange(0, BLOCK_Q)
    q = load(q_ptr, q_stride, first, count, C, BLOCK_Q)
    q = (q * (scale * (1.0 / BIAS_SCALE))).to(q.dtype)
    grad_o = load(grad_o_ptr, grad_o_stride, first, count, C, BLOCK_Q)
    lse = tl.load(lse_ptr + queries, mask=queries < count, other=float("inf"))
    delta = tl.load(delta_ptr + queries, mask=queries < count, other=0.0)
    return q, grad_o, lse, delta


@triton.jit
def attention_backward_queries_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, bias_ptr, lse_ptr, delta_ptr, grad_o_ptr, grad_q_ptr,
    q_strides, k_strides, v_strides, mask_strides, bias_strides, grad_o_strides,
    grad_q_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, BIAS_SCALE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One CTA: gradient of a block of queries of one row and head."""
    batch, row, head, first_q = place_of_cta(num_rows, num_heads, BLOCK_Q)
    q_ptr += row_offset(q_strides, batch, row, head)
    k_ptr += row_offset(k_strides, batch, row, head)
    v_ptr += row_offset(v_strides, batch, row, head)
    grad_o_ptr += row_offset(grad_o_strides, batch, row, head)
    grad_q_ptr += row_offset(grad_q_strides, batch, row, head)
    mask_ptr += batch.to(tl.int64) * mask_strides[0] + row.to(tl.int64) * mask_strides[1]
    start = ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
    unmasked = count_unmasked(mask_ptr, mask_strides[2], num_keys, BLOCK_K)
    alive = (unmasked > 0).to(tl.float32)
    queries = first_q + tl.arange(0, BLOCK_Q)
    if bias_ptr is not None:
        bias_ptr += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]

    q, grad_o, lse, delta = load_queries(
        q_ptr, grad_o_ptr, lse_ptr + start, delta_ptr + start, q_strides[2], grad_o_strides[2],
        first_q, num_queries, scale, C, BIAS_SCALE, BLOCK_Q,
    )  # fmt: skip
    grad_q = tl.zeros((BLOCK_Q, q.shape[1]), tl.float32)
    for first_k in range(0, num_keys, BLOCK_K):
        keys = first_k + tl.arange(0, BLOCK_K)
        k = load(k_ptr, k_strides[2], first_k, num_keys, C, BLOCK_K)
        v = load(v_ptr, v_strides[2], first_k, num_keys, C, BLOCK_K)
        s = logits(
            q, k, queries, keys, bias_ptr, bias_strides, mask_ptr, mask_strides[2],
            num_queries, num_keys, unmasked, alive,
        )  # fmt: skip
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - lse[:, None])
        grad_s = p * (tl.dot(grad_o, tl.trans(v), input_precision="ieee") - delta[:, None])
        grad_q = tl.dot(grad_s.to(k.dtype), k, grad_q, input_precision="ieee")
    store(grad_q_ptr, grad_q * scale, grad_q_strides[2], first_q, num_queries, C, BLOCK_Q)


@triton.jit
def attention_backward_keys_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, bias_ptr, lse_ptr, delta_ptr, grad_o_ptr, grad_k_ptr, grad_v_ptr,
    q_strides, k_strides, v_strides, mask_strides, bias_strides, grad_o_strides,
    grad_k_strides, grad_v_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, BIAS_SCALE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One CTA: gradients of a block of keys and values of one row and head.

    Logits are transposed (keys x queries), so that the weights are left operands as they come.
    """
    batch, row, head, first_k = place_of_cta(num_rows, num_heads, BLOCK_K)
    q_ptr += row_offset(q_strides, batch, row, head)
    k_ptr += row_offset(k_strides, batch, row, head)
    v_ptr += row_offset(v_strides, batch, row, head)
    grad_o_ptr += row_offset(grad_o_strides, batch, row, head)
    grad_k_ptr += row_offset(grad_k_strides, batch, row, head)
    grad_v_ptr += row_offset(grad_v_strides, batch, row, head)
    mask_ptr += batch.to(tl.int64) * mask_strides[0] + row.to(tl.int64) * mask_strides[1]
    start = ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
    unmasked = count_unmasked(mask_ptr, mask_strides[2], num_keys, BLOCK_K)
    alive = (unmasked > 0).to(tl.float32)
    keys = first_k + tl.arange(0, BLOCK_K)
    added = masked_terms(mask_ptr, mask_strides[2], keys, num_keys, unmasked)
    if bias_ptr is not None:
        bias_ptr += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]

    k = load(k_ptr, k_strides[2], first_k, num_keys, C, BLOCK_K)
    v = load(v_ptr, v_strides[2], first_k, num_keys, C, BLOCK_K)
    grad_k = tl.zeros((BLOCK_K, k.shape[1]), tl.float32)
    grad_v = tl.zeros((BLOCK_K, k.shape[1]), tl.float32)
    for first_q in range(0, num_queries, BLOCK_Q):
        queries = first_q + tl.arange(0, BLOCK_Q)
        q, grad_o, lse, delta = load_queries(
            q_ptr, grad_o_ptr, lse_ptr + start, delta_ptr + start, q_strides[2], grad_o_strides[2],
            first_q, num_queries, scale, C, BIAS_SCALE, BLOCK_Q,
        )  # fmt: skip
        s = tl.dot(k, tl.trans(q), input_precision="ieee")
        if bias_ptr is not None:
            s += load_bias(
                bias_ptr, bias_strides, queries[None, :], keys[:, None], num_queries, num_keys
            )
        s = s * alive + added[:, None]
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - lse[None, :])
        grad_v = tl.dot(p.to(grad_o.dtype), grad_o, grad_v, input_precision="ieee")
        grad_p = tl.dot(v, tl.trans(grad_o), input_precision="ieee")
        grad_s = (p * (grad_p - delta[None, :])).to(q.dtype)
        grad_k = tl.dot(grad_s, q, grad_k, input_precision="ieee")
    # The scaled queries are divided by BIAS_SCALE.
    store(grad_k_ptr, grad_k * BIAS_SCALE, grad_k_strides[2], first_k, num_keys, C, BLOCK_K)
    store(grad_v_ptr, grad_v, grad_v_strides[2], first_k, num_keys, C, BLOCK_K)


@triton.jit
def attention_backward_bias_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, bias_ptr, lse_ptr, delta_ptr, grad_o_ptr, partial_ptr,
    q_strides, k_strides, v_strides, mask_strides, bias_strides, grad_o_strides,
    partial_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, BIAS_SCALE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One CTA: a tile of one head's bias gradient, summed over ROWS rows.

    ``partial`` (groups of rows, B, H, Q, K), float32; the strides are those of the last two.
    """
    batch = tl.program_id(1)
    num_q_blocks, num_k_blocks = tl.cdiv(num_queries, BLOCK_Q), tl.cdiv(num_keys, BLOCK_K)
    first_k = tl.program_id(0) % num_k_blocks * BLOCK_K
    first_q = tl.program_id(0) // num_k_blocks % num_q_blocks * BLOCK_Q
    head = tl.program_id(0) // (num_k_blocks * num_q_blocks) % num_heads
    group = tl.program_id(0) // (num_k_blocks * num_q_blocks * num_heads)
    queries = first_q + tl.arange(0, BLOCK_Q)
    keys = first_k + tl.arange(0, BLOCK_K)
    mask_ptr += batch.to(tl.int64) * mask_strides[0]
    bias_ptr += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
    bias = load_bias(bias_ptr, bias_strides, queries[:, None], keys[None, :], num_queries, num_keys)
    total = tl.zeros((BLOCK_Q, BLOCK_K), tl.float32)
    for i in range(tl.minimum(ROWS, num_rows - group * ROWS)):
        row = group * ROWS + i
        start = ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
        q, grad_o, lse, delta = load_queries(
            q_ptr + row_offset(q_strides, batch, row, head),
            grad_o_ptr + row_offset(grad_o_strides, batch, row, head),
            lse_ptr + start, delta_ptr + start, q_strides[2], grad_o_strides[2],
            first_q, num_queries, scale, C, BIAS_SCALE, BLOCK_Q,
        )  # fmt: skip
        offset = row_offset(k_strides, batch, row, head)
        k = load(k_ptr + offset, k_strides[2], first_k, num_keys, C, BLOCK_K)
        offset = row_offset(v_strides, batch, row, head)
        v = load(v_ptr + offset, v_strides[2], first_k, num_keys, C, BLOCK_K)
        mask_row_ptr = mask_ptr + row.to(tl.int64) * mask_strides[1]
        unmasked = count_unmasked(mask_row_ptr, mask_strides[2], num_keys, BLOCK_K)
        added = masked_terms(mask_row_ptr, mask_strides[2], keys, num_keys, unmasked)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") + bias
        s = s * (unmasked > 0).to(tl.float32) + added[None, :]
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - lse[:, None])
        grad_p = tl.dot(grad_o, tl.trans(v), input_precision="ieee")
        total += p * (grad_p - delta[:, None])
    start = (group * tl.num_programs(1) + batch).to(tl.int64) * num_heads + head
    partial_ptr += start * num_queries * num_keys
    offsets = queries[:, None].to(tl.int64) * partial_strides[0]
    offsets += keys[None, :].to(tl.int64) * partial_strides[1]
    inside = (queries[:, None] < num_queries) & (keys[None, :] < num_keys)
    tl.store(partial_ptr + offsets, total * BIAS_SCALE, mask=inside)


def backward(
    call: Call, kept: Kept, grad_out: Tensor, gradients: Gradients, sum_bias: bool
) -> tuple[Tensor, ...]:
    """Fill ``gradients``; return the sums of `backward_bias` if ``sum_bias``."""
    q, gate, bias = call.q, call.gate, call.bias
    delta, grad_out = new_statistics(q), heads_together(grad_out)
    grad_o = grad_out if gate is None else new_rows(q.shape, q)
    backward_gate(call, kept, grad_out, gradients.gate, grad_o, delta)
    known = kept.lse, delta, grad_o
    backward_queries(call, *known, gradients.q)
    backward_keys(call, *known, gradients.k, gradients.v)
    return () if bias is None or not sum_bias else (backward_bias(call, bias, *known),)


def backward_queries(call: Call, *known_and_gradient: Tensor) -> None:
    """Fill the gradient of q; before it come what `_arguments` calls known."""
    config = call.config("attention_backward_queries")
    grid = grid_of(call, call.num_queries, config["BLOCK_Q"])
    arguments, constants = _arguments(call, *known_and_gradient)
    attention_backward_queries_kernel[grid](*arguments, **constants, **config)


def backward_keys(call: Call, *known_and_gradients: Tensor) -> None:
    """Fill the gradients of k and v; before them come what `_arguments` calls known."""
    config = call.config("attention_backward_keys")
    grid = grid_of(call, call.num_keys, config["BLOCK_K"])
    arguments, constants = _arguments(call, *known_and_gradients)
    attention_backward_keys_kernel[grid](*arguments, **constants, **config)


def backward_bias(call: Call, bias: Tensor, *known: Tensor) -> Tensor:
    """Sums of the bias's gradient over groups of rows, as `new_sums` has them."""
    config = call.config("attention_backward_bias")
    tiles = triton.cdiv(call.num_queries, config["BLOCK_Q"])
    tiles *= triton.cdiv(call.num_keys, config["BLOCK_K"])
    groups = triton.cdiv(call.num_rows, config["ROWS"])
    partial = new_sums(bias, groups)
    first, second = partial.stride()[-2:]
    of_partial = (second, first) if transposed(bias) else (first, second)
    arguments, constants = _arguments(call, *known, partial, result_strides=[of_partial])
    grid = tiles * call.num_heads * groups, call.batch
    attention_backward_bias_kernel[grid](*arguments, **constants, **config)
    return partial


def _arguments(
    call: Call, *known_and_results: Tensor, result_strides: Sequence[Any] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and constants that the kernels of q, of k and v, and of the bias take.

    Known are: lse, delta, and the gradient of the ungated result.
    """
    lse, delta, grad_o, *results = known_and_results
    q, k, v, _, mask, bias, *_ = call
    arguments = [
        q, k, v, mask, bias, lse, delta, grad_o, *results, *map(strides, (q, k, v)),
        call.mask_strides, *map(strides, (bias, grad_o)),
        *(result_strides or map(strides, results)), lse.stride(2), *call.scalars,
    ]  # fmt: skip
    return arguments, {"C": call.channels, "BIAS_SCALE": call.bias_scale}
