"""Outer product mean, from the projected operands on."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from scalefold.bench.kernels.case import Inputs, KernelCase, Work
from scalefold.ops import outer_product as reference
from scalefold.ops.triton import triton_ops

_BF16 = 2
"""Bytes an element, for the floors."""

_CHANNELS, _PAIR_CHANNELS = 32, 128

# (sequences, residues, setting)
_SIZES = [
    (128, 256, "initial training"),
    (1024, 256, "initial training"),
    (512, 384, "fine-tuning"),
    (128, 384, "general"),
    (128, 512, "general"),
]

_CHECKED_RESIDUES = 128
"""In float64 the reference holds the whole outer product, several times."""


def cases() -> list[KernelCase]:
    """The MSA's and the extra MSA's."""
    return [_case(*size) for size in _SIZES]


def _case(num_seq: int, num_res: int, setting: str) -> KernelCase:
    operands = 2 * num_seq * num_res * _CHANNELS * _BF16
    result = num_res**2 * _PAIR_CHANNELS * _BF16
    product = 2 * num_seq * (num_res * _CHANNELS) ** 2
    projection = 2 * (num_res * _CHANNELS) ** 2 * _PAIR_CHANNELS
    return KernelCase(
        op="outer_product",
        shape=f"S={num_seq} N={num_res}",
        setting=setting,
        inputs=partial(_inputs, num_seq, num_res),
        check_inputs=partial(_inputs, num_seq, min(num_res, _CHECKED_RESIDUES)),
        reference=reference.outer_product_mean,
        ours=triton_ops().outer_product_mean,
        forward=Work(operands + 2 * result, product + projection),
        # The outer product anew, its gradient, and the gradients of both operands and the weight.
        backward=Work(2 * operands + result, 3 * product + 2 * projection),
    )


def _inputs(num_seq: int, num_res: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    def leaf(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, device=device)).to(dtype).requires_grad_()

    count = torch.randint(num_seq // 2, num_seq + 1, (1, num_res, num_res), device=device)
    return (
        leaf(1, num_seq, num_res, _CHANNELS),
        leaf(1, num_seq, num_res, _CHANNELS),
        count.to(dtype),
        leaf(_PAIR_CHANNELS, _CHANNELS**2, scale=1 / _CHANNELS),
        leaf(_PAIR_CHANNELS, scale=0.1),
        leaf(1, num_res, num_res, _PAIR_CHANNELS),
    )
