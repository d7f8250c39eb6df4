"""Transition: LayerNorm, linear, ReLU, linear."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import BF16_BYTES, Inputs, KernelCase, Work, leaf
from scalefold_kernels.bench.cases.norm import plain_norm
from scalefold_kernels.ops.transition import transition

# (what, rows, channels, hidden channels, setting)
_SIZES = [
    ("pair N=256", (256, 256), 128, 512, "initial training"),
    ("MSA 128 x 256", (128, 256), 256, 1024, "initial training"),
    ("extra MSA 1024 x 256", (1024, 256), 64, 256, "initial training"),
    ("template pairs 4 x N=256", (1024, 256), 64, 128, "initial training"),
    ("pair N=384", (384, 384), 128, 512, "fine-tuning"),
    ("MSA 512 x 384", (512, 384), 256, 1024, "fine-tuning"),
    ("pair N=1024", (1024, 1024), 128, 512, "general"),
    ("pair N=37", (37, 37), 128, 512, "odd sizes"),
    ("MSA 7 x 37", (7, 37), 256, 1024, "odd sizes"),
]


def cases() -> list[KernelCase]:
    """The transitions of all representations."""
    return [_case(*size) for size in _SIZES]


def _case(
    what: str, size: tuple[int, int], channels: int, num_hidden: int, setting: str
) -> KernelCase:
    volume = size[0] * size[1] * channels * BF16_BYTES
    product = 2 * size[0] * size[1] * channels * num_hidden
    return KernelCase(
        op="transition",
        shape=what,
        setting=setting,
        inputs=partial(_inputs, size, channels, num_hidden),
        check_inputs=partial(_inputs, (min(size[0], 256), size[1]), channels, num_hidden),
        reference=reference,
        ours=transition,
        forward=Work(2 * volume, 2 * product),
        # The hidden channels anew, their gradient, and the gradients of input and weights.
        backward=Work(3 * volume, 5 * product),
    )


def reference(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    """Plain torch."""
    hidden = functional.linear(plain_norm(x, norm_weight, norm_bias), up_weight, up_bias)
    return x + functional.linear(torch.relu(hidden), down_weight, down_bias)


def _inputs(
    size: tuple[int, int],
    channels: int,
    num_hidden: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Inputs:
    draw = partial(leaf, device, dtype)
    return (
        draw(1, *size, channels, scale=2.0, shift=0.5),
        draw(channels, scale=0.1, shift=1.0),
        draw(channels, scale=0.1),
        draw(num_hidden, channels, scale=channels**-0.5),
        draw(num_hidden, scale=0.1),
        draw(channels, num_hidden, scale=num_hidden**-0.5),
        draw(channels, scale=0.1),
    )
