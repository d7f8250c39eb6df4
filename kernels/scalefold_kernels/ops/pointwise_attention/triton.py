"""Pointwise attention on any GPU: one kernel forward, one backward.

Keys are few (templates), so nothing is a matrix product: a CTA walks over them with all heads of
its positions in registers. Legend: T keys, P positions, H heads, C channels of a head.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.tiles import config_for

MASKED_LOGIT = tl.constexpr(1e9)
"""The constant of `scalefold.ops.attention`."""


@triton.jit
def tile_offsets(
    num_positions,
    H: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Offsets of a CTA's tile in (P, H, C) from its first position; what is inside; start."""
    first = tl.program_id(0) * BLOCK_P
    p = tl.arange(0, BLOCK_P)[:, None, None]
    h = tl.arange(0, BLOCK_H)[None, :, None]
    c = tl.arange(0, BLOCK_C)[None, None, :]
    inside = (first + p < num_positions) & (h < H) & (c < C)
    return (p * H + h) * C + c, inside, first.to(tl.int64) * (H * C)


@triton.jit
def load_key(q, k_ptr, v_ptr, mask_ptr, at, inside):
    """A key and its value at a CTA's positions, and the logits."""
    k = tl.load(k_ptr + at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + at, mask=inside, other=0.0).to(tl.float32)
    taken = tl.load(mask_ptr).to(tl.float32)
    return k, v, tl.sum(q * k, 2) + MASKED_LOGIT * (taken - 1.0)


@triton.jit
def softmax_step(highest, logit):
    """The highest logit with this one; by what sums so far shrink; this key's weight."""
    higher = tl.maximum(highest, logit)
    return higher, tl.exp(highest - higher), tl.exp(logit - higher)


@triton.jit
def pointwise_attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, out_ptr, num_keys, num_positions, scale,
    H: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """``q`` and ``out`` (B, P, H, C), ``k`` and ``v`` (B, T, P, H, C), ``mask`` (B, T)."""
    sample = tl.program_id(1).to(tl.int64)
    at, inside, start = tile_offsets(num_positions, H, C, BLOCK_P, BLOCK_H, BLOCK_C)
    size = tl.cast(num_positions, tl.int64) * (H * C)
    here = sample * size + start
    q = tl.load(q_ptr + here + at, mask=inside, other=0.0).to(tl.float32) * scale
    highest = tl.full((BLOCK_P, BLOCK_H), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_P, BLOCK_H), tl.float32)
    out = tl.zeros((BLOCK_P, BLOCK_H, BLOCK_C), tl.float32)
    for t in tl.range(0, num_keys, num_stages=STAGES):
        key = sample * num_keys + t
        there = key * size + start
        _, v, logit = load_key(q, k_ptr + there, v_ptr + there, mask_ptr + key, at, inside)
        higher, kept, weight = softmax_step(highest, logit)
        total = total * kept + weight
        out = out * kept[:, :, None] + weight[:, :, None] * v
        highest = higher
    out /= total[:, :, None]
    tl.store(out_ptr + here + at, out, mask=inside)


@triton.jit
def pointwise_attention_backward_kernel(
    grad_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, grad_q_ptr, grad_k_ptr, grad_v_ptr,
    num_keys, num_positions, scale,
    H: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients, each in the layout of its tensor; nothing of forward is kept."""
    sample = tl.program_id(1).to(tl.int64)
    at, inside, start = tile_offsets(num_positions, H, C, BLOCK_P, BLOCK_H, BLOCK_C)
    size = tl.cast(num_positions, tl.int64) * (H * C)
    here = sample * size + start
    q = tl.load(q_ptr + here + at, mask=inside, other=0.0).to(tl.float32) * scale
    grad = tl.load(grad_ptr + here + at, mask=inside, other=0.0).to(tl.float32)
    highest = tl.full((BLOCK_P, BLOCK_H), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_P, BLOCK_H), tl.float32)
    delta = tl.zeros((BLOCK_P, BLOCK_H), tl.float32)  # the weights' gradients, by the weights
    for t in tl.range(0, num_keys, num_stages=STAGES):
        key = sample * num_keys + t
        there = key * size + start
        _, v, logit = load_key(q, k_ptr + there, v_ptr + there, mask_ptr + key, at, inside)
        higher, kept, weight = softmax_step(highest, logit)
        total = total * kept + weight
        delta = delta * kept + weight * tl.sum(grad * v, 2)
        highest = higher
    delta /= total
    grad_q = tl.zeros((BLOCK_P, BLOCK_H, BLOCK_C), tl.float32)
    for t in tl.range(0, num_keys, num_stages=STAGES):
        key = sample * num_keys + t
        there = key * size + start
        k, v, logit = load_key(q, k_ptr + there, v_ptr + there, mask_ptr + key, at, inside)
        weight = tl.exp(logit - highest) / total
        grad_logit = weight * (tl.sum(grad * v, 2) - delta)
        grad_q += grad_logit[:, :, None] * k
        grad_k = grad_logit[:, :, None] * q
        tl.store(grad_k_ptr + there + at, grad_k, mask=inside)
        grad_v = weight[:, :, None] * grad
        tl.store(grad_v_ptr + there + at, grad_v, mask=inside)
    tl.store(grad_q_ptr + here + at, grad_q * scale, mask=inside)


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, out: Tensor) -> None:
    """Fill ``out``; all tensors are contiguous."""
    grid, arguments, constants = _launch("pointwise_attention_forward", q, k)
    pointwise_attention_forward_kernel[grid](q, k, v, mask, out, *arguments, **constants)


def backward(grad: Tensor, q: Tensor, k: Tensor, *more: Tensor) -> None:
    """``more``: v and mask; then the gradients of q, k and v, to fill. All are contiguous."""
    grid, arguments, constants = _launch("pointwise_attention_backward", q, k)
    pointwise_attention_backward_kernel[grid](grad, q, k, *more, *arguments, **constants)


def _launch(name: str, q: Tensor, k: Tensor) -> tuple[Any, Any, dict[str, int]]:
    """Grid, arguments after the pointers, and constants."""
    batch, positions, heads, channels = q.shape
    block_h, block_c = triton.next_power_of_2(heads), triton.next_power_of_2(channels)
    config = config_for(name, q, P=positions, T=k.shape[1], H=heads, C=channels)
    block_p = max(1, config.pop("ELEMENTS") // (block_h * block_c))
    grid = triton.cdiv(positions, block_p), batch
    blocks = {"BLOCK_P": block_p, "BLOCK_H": block_h, "BLOCK_C": block_c}
    arguments = k.shape[1], positions, channels**-0.5
    return grid, arguments, {"H": heads, "C": channels, **blocks, **config}
