"""Outer product mean: its operands from the MSA representation; the rest."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import Draw, Inputs, KernelCase, plain_norm, wider
from scalefold_kernels.ops.outer_product import outer_product_mean
from scalefold_kernels.ops.outer_product_operands import outer_product_operands

_CHANNELS, _PAIR_CHANNELS = 32, 128

# (sequences, residues, setting)
_SIZES = [
    (128, 256, "initial training"),
    (1024, 256, "initial training"),
    (512, 384, "fine-tuning"),
    (128, 384, "general"),
    (128, 512, "general"),
    (36, 37, "odd sizes"),
    (161, 37, "odd sizes"),
]

# (sequences, residues, channels, what, setting)
_OPERANDS = [
    (128, 256, 256, "MSA", "initial training"),
    (1024, 256, 64, "extra MSA", "initial training"),
    (512, 384, 256, "MSA", "fine-tuning"),
    (36, 37, 256, "MSA", "odd sizes"),
]

_CHECKED_RESIDUES = 128
"""In float64 the reference holds the whole outer product, several times."""


def cases() -> list[KernelCase]:
    """The MSA's and the extra MSA's."""
    means = [
        KernelCase(
            op="outer_product",
            shape=f"S={num_seq} N={num_res}",
            setting=setting,
            inputs=partial(_inputs, num_seq, num_res),
            check_inputs=partial(_inputs, num_seq, min(num_res, _CHECKED_RESIDUES)),
            reference=plain_mean,
            ours=outer_product_mean,
        )
        for num_seq, num_res, setting in _SIZES
    ]
    operands = [
        KernelCase(
            op="outer_product",
            shape=f"operands, {what} {num_seq} x {num_res}",
            setting=setting,
            inputs=partial(_operands_inputs, num_seq, num_res, channels),
            reference=plain_operands,
            ours=outer_product_operands,
        )
        for num_seq, num_res, channels, what, setting in _OPERANDS
    ]
    return means + operands


def plain_mean(
    a: Tensor, b: Tensor, count: Tensor, weight: Tensor, bias: Tensor, z: Tensor
) -> Tensor:
    """Plain torch, the division in float32 at least; shapes as of the op."""
    outer = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
    number = count[..., None].to(wider(outer.dtype)) + 1e-3
    return z + (functional.linear(outer, weight, bias) / number).to(z.dtype)


def plain_operands(
    m: Tensor, mask: Tensor, norm_weight: Tensor, norm_bias: Tensor, *maps: Tensor
) -> tuple[Tensor, ...]:
    """Plain torch; m itself is the last result."""
    normed = plain_norm(m, norm_weight, norm_bias)
    a, b = (functional.linear(normed, *maps[i : i + 2]) * mask[..., None] for i in (0, 2))
    return a, b, m


def _operands_inputs(
    num_seq: int, num_res: int, channels: int, device: torch.device, dtype: torch.dtype
) -> Inputs:
    draw = Draw(device, dtype)
    return (
        draw.representation(1, num_seq, num_res, channels),
        (torch.rand(1, num_seq, num_res, device=device) < 0.9).to(dtype),
        *draw.norm(channels),
        *draw.linear(_CHANNELS, channels),
        *draw.linear(_CHANNELS, channels),
    )


def _inputs(num_seq: int, num_res: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    draw = Draw(device, dtype)

    def operand() -> Tensor:
        # As `outer_product_operands` leaves it, sequences last.
        x = draw(1, num_res, _CHANNELS, num_seq)
        return x.detach().permute(0, 3, 1, 2).requires_grad_()

    count = torch.randint(num_seq // 2, num_seq + 1, (1, num_res, num_res), device=device)
    maps = draw.linear(_PAIR_CHANNELS, _CHANNELS**2)
    z = draw(1, num_res, num_res, _PAIR_CHANNELS)
    return operand(), operand(), count.to(dtype), *maps, z
