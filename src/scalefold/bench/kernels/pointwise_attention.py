"""Attention of each pair to its templates."""

from __future__ import annotations

from functools import partial

import torch

from scalefold.bench.kernels.case import BF16_BYTES, Inputs, KernelCase, Work
from scalefold.ops import pointwise_attention as reference
from scalefold.ops.triton import triton_ops

_TEMPLATES, _HEADS, _CHANNELS = 4, 4, 16


def cases() -> list[KernelCase]:
    """Template pointwise attention at the crops of training, and larger."""
    settings = {256: "initial training", 384: "fine-tuning", 1024: "general"}
    return [_case(size, setting) for size, setting in settings.items()]


def _case(size: int, setting: str) -> KernelCase:
    volume = size**2 * _HEADS * _CHANNELS * BF16_BYTES
    return KernelCase(
        op="pointwise_attention",
        shape=f"templates N={size}",
        setting=setting,
        inputs=partial(_inputs, size**2),
        reference=reference.pointwise_attention,
        ours=triton_ops().pointwise_attention,
        # q and the result once, k and v once for each template; the same again for gradients.
        forward=Work((2 + 2 * _TEMPLATES) * volume),
        backward=Work((3 + 4 * _TEMPLATES) * volume),
    )


def _inputs(positions: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    q = torch.randn(1, positions, _HEADS, _CHANNELS, device=device)
    k, v = (torch.randn(1, _TEMPLATES, *q.shape[1:], device=device) for _ in range(2))
    mask = torch.ones(1, _TEMPLATES, device=device)
    return *(t.to(dtype).requires_grad_() for t in (q, k, v)), mask
