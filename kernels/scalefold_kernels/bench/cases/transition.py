"""Transition: LayerNorm, linear, ReLU, linear."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import Draw, Inputs, KernelCase, plain_norm
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
    return [
        KernelCase(
            op="transition",
            shape=what,
            setting=setting,
            inputs=partial(_inputs, size, channels, hidden),
            check_inputs=partial(_inputs, (min(size[0], 256), size[1]), channels, hidden),
            reference=reference,
            ours=transition,
        )
        for what, size, channels, hidden, setting in _SIZES
    ]


def reference(x: Tensor, *parameters: Tensor) -> Tensor:
    """Plain torch; parameters in the order of the op's `Parameters`."""
    norm, up, down = (parameters[i : i + 2] for i in (0, 2, 4))
    hidden = functional.linear(plain_norm(x, *norm), *up)
    return x + functional.linear(torch.relu(hidden), *down)


def _inputs(
    size: tuple[int, int], channels: int, hidden: int, device: torch.device, dtype: torch.dtype
) -> Inputs:
    draw = Draw(device, dtype)
    return (
        draw.representation(1, *size, channels),
        *draw.norm(channels),
        *draw.linear(hidden, channels),
        *draw.linear(channels, hidden),
    )
