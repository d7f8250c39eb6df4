"""The end of an attention: a linear map added to the residual, with dropout."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import Draw, Inputs, KernelCase
from scalefold_kernels.dropout.mask import Dropout
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
    return [
        KernelCase(
            op="linear",
            shape=what,
            setting=setting,
            inputs=partial(_inputs, (*size, channels), rate, shared_dim),
            reference=reference,
            ours=residual_linear,
        )
        for what, size, channels, rate, shared_dim, setting in _UPDATES
    ]


def reference(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: tuple[Tensor, int, float, int] | None,
) -> Tensor:
    """Plain torch."""
    update = functional.linear(h, weight, bias)
    return x + (update if dropout is None else Dropout(*dropout).applied(update))


def _inputs(
    shape: tuple[int, ...],
    rate: float,
    shared_dim: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Inputs:
    draw = Draw(device, dtype)
    key = torch.randint(-(2**62), 2**62, (1,), device=device)
    dropout = (key, _LAYER, rate, shared_dim) if rate else None
    return draw(1, *shape), draw(1, *shape), *draw.linear(shape[-1], shape[-1]), dropout
