"""Attention of the structure module by features, pairs and distances of points, in float32."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from scalefold.bench.kernels.case import FP32_BYTES, Inputs, KernelCase, Work
from scalefold.ops import TORCH, Ops
from scalefold.ops.triton import triton_ops

_HEADS, _CHANNELS, _POINTS, _VALUE_POINTS, _PAIR_CHANNELS = 12, 16, 4, 8, 128

_SHAPES = [(256, "initial training"), (384, "fine-tuning"), (1024, "general")]


def cases() -> list[KernelCase]:
    """The model's heads and points."""
    return [_case(*shape) for shape in _SHAPES]


def _case(num_res: int, setting: str) -> KernelCase:
    pairs = num_res**2
    # Logits in and weights out, and back; the pairs once, and their gradient.
    logits, channels = 2 * _HEADS * pairs * FP32_BYTES, _PAIR_CHANNELS * pairs * FP32_BYTES
    of_head = 2 * _CHANNELS + 3 * (_POINTS + _VALUE_POINTS) + _PAIR_CHANNELS
    flops = 2 * _HEADS * pairs * of_head
    return KernelCase(
        op="point_attention",
        shape=f"N={num_res}",
        setting=setting,
        inputs=partial(_inputs, num_res),
        reference=partial(_results, TORCH),
        as_written=as_written,
        ours=partial(_results, triton_ops()),
        forward=Work(logits + channels, flops, _HEADS * pairs),
        backward=Work(logits + 2 * channels, 2 * flops),
    )


def _results(ops: Ops, *arguments: Tensor) -> tuple[Tensor, ...]:
    """Those with a gradient."""
    return ops.point_attention(*arguments)[:3]


def as_written(*arguments: Tensor) -> tuple[Tensor, ...]:
    """Alg. 22, distances from differences of points; the reference makes them in float64."""
    q, k, v, x, y, u, pair_logits, point_weight, pair = arguments
    squares = (x[:, :, None] - y[:, None]).square().sum((-1, -2)).permute(0, 3, 1, 2)
    products = torch.einsum("bihc,bjhc->bhij", q * (3 * q.shape[-1]) ** -0.5, k)
    logits = products - 0.5 * point_weight[:, None, None] * squares + pair_logits
    weights = torch.softmax(logits, -1)
    return (
        torch.einsum("bhij,bjhc->bihc", weights, v),
        torch.einsum("bhij,bjhpx->bihpx", weights, u),
        torch.einsum("bhij,bijc->bihc", weights, pair),
    )


def _inputs(num_res: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    features = [draw(1, num_res, _HEADS, _CHANNELS) for _ in range(3)]
    points = [draw(1, num_res, _HEADS, p, 3) for p in (_POINTS, _POINTS, _VALUE_POINTS)]
    pair_logits, weight = draw(1, _HEADS, num_res, num_res), 0.1 * draw(_HEADS).square()
    pair = draw(1, num_res, num_res, _PAIR_CHANNELS)
    return tuple(t.requires_grad_() for t in (*features, *points, pair_logits, weight, pair))
