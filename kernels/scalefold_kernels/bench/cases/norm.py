"""LayerNorm, alone and followed by the projections that AlphaFold2 makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import Draw, Inputs, KernelCase, plain_norm
from scalefold_kernels.ops.norm import layer_norm
from scalefold_kernels.ops.normed_projection import normed_projection

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
        shape = (1, *size, channels)
        inputs = partial(_norm_inputs, shape)
        found.append(
            KernelCase("norm", f"LayerNorm {what}", inputs, plain_norm, layer_norm, setting)
        )
        to = {"q, k, v, gate": [channels] * 4}
        if channels == 128:
            to = {"q, k, v, gate, bias": [channels] * 4 + [4], "bias": [8]}
        for name, outputs in to.items():
            inputs = partial(_projection_inputs, shape, outputs)
            name = f"LayerNorm and projection: {what} to {name}"
            found.append(
                KernelCase("norm", name, inputs, plain_projection, normed_projection, setting)
            )
    return found


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


def _norm_inputs(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Inputs:
    draw = Draw(device, dtype)
    return draw.representation(*shape), *draw.norm(shape[-1])


def _projection_inputs(
    shape: tuple[int, ...], outputs: list[int], device: torch.device, dtype: torch.dtype
) -> Inputs:
    draw, channels = Draw(device, dtype), shape[-1]
    weights = [draw.weight(p, channels) for p in outputs]
    biases = [draw(channels) if place == _GATE else None for place in range(len(outputs))]
    # As in the model: queries of heads of 32 channels are in bits, as the bias beside them is.
    bits = 1 / math.log(2)
    scales = (32**-0.5 * bits, bits) if len(outputs) > _GATE + 1 else ()
    return *_norm_inputs(shape, device, dtype), weights, biases, *scales
