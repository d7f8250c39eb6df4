"""Global attention along the columns of the extra MSA, from LayerNorm to residual."""

from __future__ import annotations

from functools import partial

import torch

from scalefold.bench.kernels.case import BF16_BYTES, Inputs, KernelCase, Work, leaf
from scalefold.ops import global_attention as reference
from scalefold.ops.triton import triton_ops

_CHANNELS, _HEADS, _HEAD = 64, 8, 8
_EVERY = _HEADS * _HEAD


def cases() -> list[KernelCase]:
    """Residues and extra rows of training's two phases."""
    sizes = {"initial training": (1024, 256), "fine-tuning": (5120, 384)}
    return [_case(*size, setting) for setting, size in sizes.items()]


def _case(rows: int, residues: int, setting: str) -> KernelCase:
    elements = rows * residues * _CHANNELS
    # Gate and output; the logits and the mean under the softmax are small beside them.
    products = 2 * elements * 2 * (_EVERY + _HEADS)
    return KernelCase(
        op="global_attention",
        shape=f"S={rows} N={residues}",
        setting=setting,
        inputs=partial(_inputs, rows, residues),
        check_inputs=partial(_inputs, min(rows, 1024), 64),
        reference=reference.global_attention,
        ours=triton_ops(("attention",)).global_attention,
        forward=Work(2 * elements * BF16_BYTES, products),
        # The gate anew, and the gradients of both products' operands.
        backward=Work(3 * elements * BF16_BYTES, 5 * products // 2),
    )


def _inputs(rows: int, residues: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    draw = partial(leaf, device, dtype)
    depth = _CHANNELS**-0.5
    return (
        draw(1, rows, residues, _CHANNELS, scale=2.0, shift=0.5),
        torch.ones(1, rows, residues, device=device),
        draw(_CHANNELS, scale=0.1, shift=1.0),
        draw(_CHANNELS, scale=0.1),
        draw(_EVERY, _CHANNELS, scale=depth),
        draw(_HEAD, _CHANNELS, scale=depth),
        draw(_HEAD, _CHANNELS, scale=depth),
        draw(_EVERY, _CHANNELS, scale=depth),
        draw(_EVERY, scale=0.1, shift=1.0),
        draw(_CHANNELS, _EVERY, scale=depth),
        draw(_CHANNELS, scale=0.1),
    )
