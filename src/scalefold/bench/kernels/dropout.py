"""Dropout on a residual update, its mask shared over one dimension."""

from __future__ import annotations

from functools import partial

import torch

from scalefold.bench.kernels.case import BF16_BYTES, Inputs, KernelCase, Work
from scalefold.ops import dropout as reference
from scalefold.ops.triton import triton_ops

_LAYER, _PAIR_RATE, _MSA_RATE = 7, 0.25, 0.15

# (what, shape, rate, shared dimension, setting)
_UPDATES = [
    ("pair N=256, by columns", (256, 256, 128), _PAIR_RATE, -3, "initial training"),
    ("pair N=256, by rows", (256, 256, 128), _PAIR_RATE, -2, "initial training"),
    ("MSA 128 x 256", (128, 256, 256), _MSA_RATE, -3, "initial training"),
    ("extra MSA 1024 x 256", (1024, 256, 64), _MSA_RATE, -3, "initial training"),
    ("pair N=384, by columns", (384, 384, 128), _PAIR_RATE, -3, "fine-tuning"),
    ("pair N=1024, by rows", (1024, 1024, 128), _PAIR_RATE, -2, "general"),
]


def cases() -> list[KernelCase]:
    """Residual updates of the Evoformer."""
    return [_case(*update) for update in _UPDATES]


def _case(
    what: str, shape: tuple[int, ...], rate: float, shared_dim: int, setting: str
) -> KernelCase:
    num_bytes = shape[0] * shape[1] * shape[2] * BF16_BYTES
    return KernelCase(
        op="dropout",
        shape=what,
        setting=setting,
        inputs=partial(_inputs, shape, rate, shared_dim),
        reference=reference.residual_dropout,
        ours=triton_ops().residual_dropout,
        forward=Work(3 * num_bytes),
        backward=Work(2 * num_bytes),
    )


def _inputs(
    shape: tuple[int, ...],
    rate: float,
    shared_dim: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Inputs:
    x, update = (torch.randn(1, *shape, device=device).to(dtype) for _ in range(2))
    key = torch.randint(-(2**62), 2**62, (1,), device=device)
    return x.requires_grad_(), update.requires_grad_(), key, _LAYER, rate, shared_dim
