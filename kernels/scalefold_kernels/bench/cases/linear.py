"""The end of an attention: a linear map added to the residual, with dropout."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import BF16_BYTES, Inputs, KernelCase, Work
from scalefold_kernels.ops.linear import residual_linear

_LAYER, _PAIR_RATE, _MSA_RATE = 7, 0.25, 0.15

# (what, rows and columns, channels in and out, rate, shared dimension, setting)
_UPDATES = [
    ("pair N=256, starting node", (256, 256), 128, _PAIR_RATE, -3, "initial training"),
    ("pair N=256, ending node", (256, 256), 128, _PAIR_RATE, -2, "initial training"),
    ("MSA 128 x 256, by rows", (128, 256), 256, _MSA_RATE, -3, "initial training"),
    ("MSA 128 x 256, by columns", (128, 256), 256, 0.0, None, "initial training"),
    ("extra MSA 1024 x 256, by rows", (1024, 256), 64, _MSA_RATE, -3, "initial training"),
    ("pair N=384, starting node", (384, 384), 128, _PAIR_RATE, -3, "fine-tuning"),
    ("MSA 512 x 384, by rows", (512, 384), 256, _MSA_RATE, -3, "fine-tuning"),
    ("pair N=1024, ending node", (1024, 1024), 128, _PAIR_RATE, -2, "general"),
    ("pair N=37, starting node", (37, 37), 128, _PAIR_RATE, -3, "odd sizes"),
    ("pair N=37, ending node", (37, 37), 64, _PAIR_RATE, -2, "odd sizes"),
]


def cases() -> list[KernelCase]:
    """Attentions of the Evoformer and of the extra MSA stack."""
    return [_case(*update) for update in _UPDATES]


def _case(
    what: str,
    size: tuple[int, int],
    channels: int,
    rate: float,
    shared_dim: int | None,
    setting: str,
) -> KernelCase:
    rows = size[0] * size[1]
    volume, flops = rows * channels * BF16_BYTES, 2 * rows * channels**2
    return KernelCase(
        op="linear",
        shape=what,
        setting=setting,
        inputs=partial(_inputs, (*size, channels), rate, shared_dim),
        reference=reference,
        ours=residual_linear,
        forward=Work(3 * volume, flops),
        backward=Work(3 * volume, 2 * flops),
    )


def reference(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: tuple[Tensor, int, float, int] | None,
) -> Tensor:
    """Plain torch."""
    update = functional.linear(h, weight, bias)
    if dropout is None:
        return x + update
    key, layer, rate, shared_dim = dropout
    shape = list(update.shape[1:])
    shape[shared_dim] = 1
    keep = _kept(key, layer, rate, shape)
    return x + update * (keep.to(update.dtype) / (1.0 - rate))


def _kept(key: Tensor, layer: int, rate: float, shape: list[int]) -> Tensor:
    """Which elements are kept: a hash of key, layer and coordinates; (B, *shape).

    The finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants "mix 13" of Stafford 2011), once
    for each coordinate.
    """
    state = _mixed(_mixed(key, torch.zeros_like(key)), torch.full_like(key, layer))
    for size in shape:
        state = _mixed(state[..., None], torch.arange(size, device=key.device))
    uniform = (state >> 40) & 0xFFFFFF
    return uniform >= round(rate * 0x1000000)


def _mixed(state: Tensor, coordinate: Tensor) -> Tensor:
    x = state + (coordinate + 1) * (0x9E3779B97F4A7C15 - (1 << 64))
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * (0xBF58476D1CE4E5B9 - (1 << 64))
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * (0x94D049BB133111EB - (1 << 64))
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _inputs(
    shape: tuple[int, ...],
    rate: float,
    shared_dim: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Inputs:
    x, h = (torch.randn(1, *shape, device=device) for _ in range(2))
    weight = torch.randn(shape[-1], shape[-1], device=device) * shape[-1] ** -0.5
    bias = torch.randn(shape[-1], device=device)
    key = torch.randint(-(2**62), 2**62, (1,), device=device)
    dropout = (key, _LAYER, rate, shared_dim) if rate else None
    return *(t.to(dtype).requires_grad_() for t in (x, h, weight, bias)), dropout
