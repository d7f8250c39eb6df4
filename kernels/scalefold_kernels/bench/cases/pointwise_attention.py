"""Attention of each pair to its templates."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from scalefold_kernels.bench.case import BF16_BYTES, Inputs, KernelCase, Work, wider
from scalefold_kernels.ops.pointwise_attention import pointwise_attention

_TEMPLATES, _HEADS, _CHANNELS = 4, 4, 16


def cases() -> list[KernelCase]:
    """Template pointwise attention at the crops of training, and larger."""
    settings = {256: "initial training", 384: "fine-tuning", 1024: "general", 37: "odd sizes"}
    return [_case(size, setting) for size, setting in settings.items()]


def _case(size: int, setting: str) -> KernelCase:
    volume = size**2 * _HEADS * _CHANNELS * BF16_BYTES
    return KernelCase(
        op="pointwise_attention",
        shape=f"templates N={size}",
        setting=setting,
        inputs=partial(_inputs, size**2),
        reference=reference,
        ours=pointwise_attention,
        # q and the result once, k and v once for each template; the same again for gradients.
        forward=Work((2 + 2 * _TEMPLATES) * volume),
        backward=Work((3 + 4 * _TEMPLATES) * volume),
    )


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Plain torch, the softmax in float32 at least; shapes as of the op."""
    logits = torch.einsum("bphc,btphc->bpht", q * q.shape[-1] ** -0.5, k).to(wider(q.dtype))
    logits = logits + 1e9 * (mask.to(logits.dtype) - 1)[:, None, None, :]
    return torch.einsum("bpht,btphc->bphc", torch.softmax(logits, dim=-1).to(v.dtype), v)


def _inputs(positions: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    q = torch.randn(1, positions, _HEADS, _CHANNELS, device=device)
    k, v = (torch.randn(1, _TEMPLATES, *q.shape[1:], device=device) for _ in range(2))
    mask = torch.ones(1, _TEMPLATES, device=device)
    return *(t.to(dtype).requires_grad_() for t in (q, k, v)), mask
