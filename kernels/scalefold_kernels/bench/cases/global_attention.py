"""Global attention along the columns of the extra MSA, from LayerNorm to residual."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import Draw, Inputs, KernelCase, plain_norm, wider
from scalefold_kernels.ops.global_attention import global_attention
from scalefold_kernels.ops.global_attention.op import Parameters

_CHANNELS, _HEADS, _HEAD = 64, 8, 8
_EVERY = _HEADS * _HEAD

# (rows, residues, setting)
_SIZES = [(1024, 256, "initial training"), (5120, 384, "fine-tuning"), (161, 37, "odd sizes")]


def cases() -> list[KernelCase]:
    """Residues and extra rows of training's two phases."""
    return [
        KernelCase(
            op="global_attention",
            shape=f"S={rows} N={residues}",
            setting=setting,
            inputs=partial(_inputs, rows, residues),
            check_inputs=partial(_inputs, min(rows, 1024), min(residues, 64)),
            reference=reference,
            ours=global_attention,
        )
        for rows, residues, setting in _SIZES
    ]


def reference(x: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
    """Plain torch, sums over rows in float32 at least; shapes as of the op."""
    p = Parameters(*parameters)
    normed = plain_norm(x, p.norm_weight, p.norm_bias)
    heads = (-1, p.key_weight.shape[0])
    query = functional.linear(normed, p.query_weight).unflatten(-1, heads).to(wider(x.dtype))
    mask = mask.to(query.dtype)
    mean = (query * mask[..., None, None]).sum(1) / (mask.sum(1)[..., None, None] + 1e-10)
    key, value = (functional.linear(normed, weight) for weight in (p.key_weight, p.value_weight))
    scaled = mean.to(key.dtype) * key.shape[-1] ** -0.5
    logits = torch.einsum("bnha,bsna->bnhs", scaled, key).to(query.dtype)
    logits = logits + 1e9 * (mask - 1).transpose(1, 2)[:, :, None]
    weights = torch.softmax(logits, -1).to(value.dtype)
    result = torch.einsum("bnhs,bsna->bnha", weights, value)
    gate = torch.sigmoid(functional.linear(normed, p.gate_weight, p.gate_bias)).unflatten(-1, heads)
    return x + functional.linear((gate * result[:, None]).flatten(-2), p.out_weight, p.out_bias)


def _inputs(rows: int, residues: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    draw = Draw(device, dtype)
    return (
        draw.representation(1, rows, residues, _CHANNELS),
        torch.ones(1, rows, residues, device=device),
        *draw.norm(_CHANNELS),
        draw.weight(_EVERY, _CHANNELS),
        draw.weight(_HEAD, _CHANNELS),
        draw.weight(_HEAD, _CHANNELS),
        *draw.linear(_EVERY, _CHANNELS),
        *draw.linear(_CHANNELS, _EVERY),
    )
