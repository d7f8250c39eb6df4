"""LayerNorm, alone and followed by the projections that AlphaFold2 makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import BF16_BYTES, Inputs, KernelCase, Work, leaf
from scalefold_kernels.ops.norm import layer_norm, normed_projection

_GATE = 3
"""Which of several projections has a bias."""

# (what, rows and columns, channels, setting)
_REPRESENTATIONS = [
    ("pair N=256", (256, 256), 128, "initial training"),
    ("MSA 128 x 256", (128, 256), 256, "initial training"),
    ("extra MSA 1024 x 256", (1024, 256), 64, "initial training"),
    ("pair N=384", (384, 384), 128, "fine-tuning"),
    ("MSA 512 x 384", (512, 384), 256, "fine-tuning"),
    ("extra MSA 5120 x 384", (5120, 384), 64, "fine-tuning"),
    ("pair N=512", (512, 512), 128, "general"),
    ("pair N=1024", (1024, 1024), 128, "general"),
    ("pair N=37", (37, 37), 128, "odd sizes"),
    ("MSA 7 x 37", (7, 37), 256, "odd sizes"),
]


def cases() -> list[KernelCase]:
    """LayerNorm of each representation, and its projections to q, k, v and gate, and to a bias."""
    found = []
    for what, size, channels, setting in _REPRESENTATIONS:
        found.append(_norm_case(what, size, channels, setting))
        to = [("q, k, v, gate", [channels] * 4)]
        if channels == 128:
            to = [("q, k, v, gate, bias", [channels] * 4 + [4]), ("bias", [8])]
        for name, outputs in to:
            found.append(_projection_case(f"{what} to {name}", size, channels, outputs, setting))
    return found


def _norm_case(what: str, size: tuple[int, int], channels: int, setting: str) -> KernelCase:
    volume = size[0] * size[1] * channels * BF16_BYTES
    return KernelCase(
        op="norm",
        shape=f"LayerNorm {what}",
        setting=setting,
        inputs=partial(_norm_inputs, size, channels),
        reference=plain_norm,
        ours=layer_norm,
        forward=Work(2 * volume),
        backward=Work(3 * volume),
    )


def _projection_case(
    what: str, size: tuple[int, int], channels: int, outputs: list[int], setting: str
) -> KernelCase:
    forward, backward = projection_work(size[0] * size[1], channels, sum(outputs))
    return KernelCase(
        op="norm",
        shape=f"LayerNorm and projection: {what}",
        setting=setting,
        inputs=partial(_projection_inputs, size, channels, outputs),
        reference=plain_projection,
        ours=normed_projection,
        forward=forward,
        backward=backward,
    )


def projection_work(rows: int, channels: int, outputs: int) -> tuple[Work, Work]:
    """Least work of LayerNorm and a projection, forward and backward.

    Backward has the gradient of x itself too, which is passed through.
    """
    x, out = rows * channels * BF16_BYTES, rows * outputs * BF16_BYTES
    flops = 2 * rows * channels * outputs
    return Work(x + out, flops), Work(3 * x + out, 2 * flops)


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Plain torch."""
    return functional.layer_norm(x, weight.shape, weight, bias)


def plain_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    first_scale: float = 1.0,
    last_scale: float = 1.0,
) -> tuple[Tensor, ...]:
    """Plain torch; x itself is the last result."""
    normed = plain_norm(x, norm_weight, norm_bias)
    first, *others = (functional.linear(normed, *pair) for pair in zip(weights, biases))
    if others:
        others[-1] = others[-1] * last_scale
    return first * first_scale, *others, x


def _norm_inputs(
    size: tuple[int, int], channels: int, device: torch.device, dtype: torch.dtype
) -> Inputs:
    draw = partial(leaf, device, dtype)
    x = draw(1, *size, channels, scale=2.0, shift=0.5)
    return x, draw(channels, scale=0.1, shift=1.0), draw(channels, scale=0.1)


def _projection_inputs(
    size: tuple[int, int],
    channels: int,
    outputs: list[int],
    device: torch.device,
    dtype: torch.dtype,
) -> Inputs:
    draw = partial(leaf, device, dtype)
    weights = [draw(p, channels, scale=channels**-0.5) for p in outputs]
    gate_bias = draw(channels)
    biases = [gate_bias if projection == _GATE else None for projection in range(len(outputs))]
    # As in the model: queries of heads of 32 channels are in bits, as the bias beside them is.
    bits = 1 / math.log(2)
    scales = (32**-0.5 * bits, bits) if len(outputs) > _GATE + 1 else ()
    return (*_norm_inputs(size, channels, device, dtype), weights, biases, *scales)
