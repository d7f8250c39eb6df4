"""Forward of attention on any GPU, and what its kernels share with those of backward.

Legend: B samples, R rows (independent attentions), Q/K query and key positions, H heads, C channels
of a head. Strides of tensors (B, R, Q or K, H, C) are those of the first four dimensions, channels
are contiguous. Statistics of the softmax are in base 2, as the hardware's exponential is:
``lse`` = log2 of the sum of exp(logits). For BIAS_SCALE, the unit of logits, see `op.attention`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.ops.attention.arguments import Call
from scalefold_kernels.ops.attention.rest import SHIFTS, byte_of_rest

LOG2E = tl.constexpr(1.4426950408889634)

MASKED_LOGIT = tl.constexpr(-1e9)
"""Added to the logits of masked keys; keys beyond the last get minus infinity."""


@triton.jit
def place_of_cta(num_rows, num_heads, BLOCK: tl.constexpr):
    """Sample, row, head and first position. Rows that share a bias come together."""
    row = tl.program_id(0) % num_rows
    head = tl.program_id(0) // num_rows % num_heads
    return tl.program_id(1), row, head, tl.program_id(0) // (num_rows * num_heads) * BLOCK


@triton.jit
def row_offset(strides, batch, row, head):
    """Where (batch, row, :, head, :) starts."""
    return batch.to(tl.int64) * strides[0] + row.to(tl.int64) * strides[1] + head * strides[3]


@triton.jit
def positions(ptr, stride, first, count, C: tl.constexpr, BLOCK: tl.constexpr):
    """Addresses (BLOCK, C) of consecutive positions, and which of them exist."""
    BLOCK_C: tl.constexpr = max(16, triton.next_power_of_2(C))
    n = first + tl.arange(0, BLOCK)
    c = tl.arange(0, BLOCK_C)
    inside = (n[:, None] < count) & (c[None, :] < C)
    return ptr + n[:, None].to(tl.int64) * stride + c[None, :], inside


@triton.jit
def load(ptr, stride, first, count, C: tl.constexpr, BLOCK: tl.constexpr):
    """Tile (BLOCK, C padded to a power of two), zero where there is nothing."""
    addresses, inside = positions(ptr, stride, first, count, C, BLOCK)
    return tl.load(addresses, mask=inside, other=0.0)


@triton.jit
def store(ptr, tile, stride, first, count, C: tl.constexpr, BLOCK: tl.constexpr):
    addresses, inside = positions(ptr, stride, first, count, C, BLOCK)
    tl.store(addresses, tile, mask=inside)


@triton.jit
def load_bias(bias_ptr, strides, q, k, num_queries, num_keys):
    """Tile of the bias, float32; ``q`` and ``k`` are indices that broadcast against each other."""
    inside = (q < num_queries) & (k < num_keys)
    offsets = q.to(tl.int64) * strides[2] + k.to(tl.int64) * strides[3]
    return tl.load(bias_ptr + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def count_unmasked(mask_ptr, stride, num_keys, BLOCK: tl.constexpr):
    """Number of keys that take part in a row."""
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, num_keys, BLOCK):
        k = first + tl.arange(0, BLOCK)
        total += (tl.load(mask_ptr + k * stride, mask=k < num_keys, other=0.0) != 0).to(tl.int32)
    return tl.sum(total)


@triton.jit
def masked_terms(mask_ptr, stride, k, num_keys, unmasked):
    """What masking adds to the logits of keys ``k``.

    A row without any unmasked key attends to all alike, as it does in float32, where its logits
    vanish beside MASKED_LOGIT: they are multiplied by ``unmasked > 0`` and nothing is added.
    """
    keep = tl.load(mask_ptr + k * stride, mask=k < num_keys, other=0.0) != 0
    added = tl.where(keep | (unmasked == 0), 0.0, MASKED_LOGIT)
    return tl.where(k < num_keys, added, -float("inf"))


@triton.jit
def logits(
    q, k, queries, keys, bias_ptr, bias_strides, mask_ptr, mask_stride,
    num_queries, num_keys, unmasked, alive,
):  # fmt: skip
    """Logits of a block of scaled queries and a block of keys."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if bias_ptr is not None:
        s += load_bias(
            bias_ptr, bias_strides, queries[:, None], keys[None, :], num_queries, num_keys
        )
    return s * alive + masked_terms(mask_ptr, mask_stride, keys, num_keys, unmasked)[None, :]


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-LOG2E * x.to(tl.float32)))


def grid_of(call: Call, positions: int, block: int) -> tuple[int, int]:
    """A CTA a block of positions of a row and head."""
    return triton.cdiv(positions, block) * call.num_heads * call.num_rows, call.batch


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Strides of the first four dimensions."""
    return (0, 0, 0, 0) if x is None else tuple(x.stride()[:4])


@triton.jit
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, gate_ptr, mask_ptr, bias_ptr, out_ptr, lse_ptr, rest_ptr,
    q_strides, k_strides, v_strides, gate_strides, mask_strides, bias_strides, out_strides,
    rest_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, BIAS_SCALE: tl.constexpr, REST_SHIFT: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One CTA: a block of queries of one row and head.

    ``REST_SHIFT``: of `byte_of_rest`; 0 if the rest is not kept.
    """
    batch, row, head, first_q = place_of_cta(num_rows, num_heads, BLOCK_Q)
    q_ptr += row_offset(q_strides, batch, row, head)
    k_ptr += row_offset(k_strides, batch, row, head)
    v_ptr += row_offset(v_strides, batch, row, head)
    out_ptr += row_offset(out_strides, batch, row, head)
    mask_ptr += batch.to(tl.int64) * mask_strides[0] + row.to(tl.int64) * mask_strides[1]
    lse_ptr += ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
    unmasked = count_unmasked(mask_ptr, mask_strides[2], num_keys, BLOCK_K)
    alive = (unmasked > 0).to(tl.float32)
    queries = first_q + tl.arange(0, BLOCK_Q)
    if bias_ptr is not None:
        bias_ptr += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]

    q = load(q_ptr, q_strides[2], first_q, num_queries, C, BLOCK_Q)
    q = (q * (scale * (1.0 / BIAS_SCALE))).to(q.dtype)
    highest = tl.full((BLOCK_Q,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    o = tl.zeros((BLOCK_Q, q.shape[1]), tl.float32)
    for first_k in range(0, num_keys, BLOCK_K):
        keys = first_k + tl.arange(0, BLOCK_K)
        k = load(k_ptr, k_strides[2], first_k, num_keys, C, BLOCK_K)
        v = load(v_ptr, v_strides[2], first_k, num_keys, C, BLOCK_K)
        s = logits(
            q, k, queries, keys, bias_ptr, bias_strides, mask_ptr, mask_strides[2],
            num_queries, num_keys, unmasked, alive,
        )  # fmt: skip
        new_highest = tl.maximum(highest, tl.max(s, 1) * (LOG2E * BIAS_SCALE))
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(p, 1)
        o = tl.dot(p.to(v.dtype), v, o * shrink[:, None], input_precision="ieee")
        highest = new_highest
    o = o / total[:, None]
    if gate_ptr is not None:
        gate_ptr += row_offset(gate_strides, batch, row, head)
        o *= sigmoid(load(gate_ptr, gate_strides[2], first_q, num_queries, C, BLOCK_Q))
    store(out_ptr, o, out_strides[2], first_q, num_queries, C, BLOCK_Q)
    if REST_SHIFT > 0:
        rest_ptr += row_offset(rest_strides, batch, row, head)
        byte = byte_of_rest(o, o.to(out_ptr.dtype.element_ty).to(tl.float32), REST_SHIFT)
        # All channels that there is room for are stored: those beyond the last are 0.
        store(rest_ptr, byte, rest_strides[2], first_q, num_queries, byte.shape[1], BLOCK_Q)
    tl.store(lse_ptr + queries, highest + tl.log2(total), mask=queries < num_queries)


def forward(call: Call, out: Tensor, lse: Tensor, rest: Tensor | None) -> None:
    """Fill ``out``, ``lse`` and, unless it is None, ``rest``: see `Kept`."""
    q, k, v, gate, mask, bias, *_ = call
    config = call.config("attention_forward")
    attention_forward_kernel[grid_of(call, call.num_queries, config["BLOCK_Q"])](
        q, k, v, gate, mask, bias, out, lse, rest, *map(strides, (q, k, v, gate)),
        call.mask_strides, strides(bias), strides(out), strides(rest), lse.stride(2),
        *call.scalars,
        C=call.channels, BIAS_SCALE=call.bias_scale,
        REST_SHIFT=0 if rest is None else SHIFTS[out.dtype], **config,
    )  # fmt: skip
