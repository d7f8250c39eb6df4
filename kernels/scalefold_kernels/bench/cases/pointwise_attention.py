"""Attention of each pair to its templates."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from scalefold_kernels.bench.case import Draw, Inputs, KernelCase, wider
from scalefold_kernels.ops.pointwise_attention import pointwise_attention

_TEMPLATES, _HEADS, _CHANNELS = 4, 4, 16

_SETTINGS = {256: "initial training", 384: "fine-tuning", 1024: "general", 37: "odd sizes"}


def cases() -> list[KernelCase]:
    """Template pointwise attention at the crops of training, and larger."""
    return [
        KernelCase(
            op="pointwise_attention",
            shape=f"templates N={size}",
            setting=setting,
            inputs=partial(_inputs, size**2),
            reference=reference,
            ours=pointwise_attention,
        )
        for size, setting in _SETTINGS.items()
    ]


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Plain torch, the softmax in float32 at least; shapes as of the op."""
    logits = torch.einsum("bphc,btphc->bpht", q * q.shape[-1] ** -0.5, k).to(wider(q.dtype))
    logits = logits + 1e9 * (mask.to(logits.dtype) - 1)[:, None, None, :]
    return torch.einsum("bpht,btphc->bphc", torch.softmax(logits, dim=-1).to(v.dtype), v)


def _inputs(positions: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    draw = Draw(device, dtype)
    q = draw(1, positions, _HEADS, _CHANNELS)
    k, v = (draw(1, _TEMPLATES, *q.shape[1:]) for _ in range(2))
    return q, k, v, torch.ones(1, _TEMPLATES, device=device)
