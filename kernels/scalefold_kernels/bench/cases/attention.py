"""Attention with pair bias, mask and gate, in each place where AlphaFold2 has it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import Draw, Function, Inputs, KernelCase, wider
from scalefold_kernels.ops.attention import attention

LN2 = math.log(2)
"""Scale of a bias in bits, which kernels take as it is: their exponentials are powers of 2."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention.

    ``by_columns``: along the columns of a representation whose rows are contiguous. ``in_bits``:
    the projection leaves the queries in bits, as the bias is.
    """

    samples: int
    rows: int
    length: int
    heads: int
    channels: int
    biased: bool = True
    by_columns: bool = False
    gated: bool = True
    in_bits: bool = True


def _triangle(length: int) -> Shape:
    return Shape(1, length, length, 4, 32)


def _msa(rows: int, length: int, channels: int = 32) -> Shape:
    return Shape(1, rows, length, 8, channels, in_bits=False)


_SHAPES = {
    "initial training": {
        "triangle attention N=256": _triangle(256),
        "triangle attention, ending node N=256": replace(_triangle(256), by_columns=True),
        "MSA row attention 128 x 256": _msa(128, 256),
        "MSA column attention 128 x 256": replace(_msa(256, 128), biased=False, by_columns=True),
        "extra MSA row attention 1024 x 256": _msa(1024, 256, 8),
        "template triangle attention N=256": Shape(4, 256, 256, 4, 16),
    },
    "fine-tuning": {
        "triangle attention N=384": _triangle(384),
        "MSA row attention 512 x 384": _msa(512, 384),
    },
    "general": {
        "triangle attention without gate N=256": replace(_triangle(256), gated=False),
        "triangle attention N=512": _triangle(512),
        "triangle attention N=1024": _triangle(1024),
    },
    "odd sizes": {
        "rows N=37": Shape(2, 5, 37, 4, 32),
        "columns N=37": Shape(1, 5, 37, 2, 16, biased=False, by_columns=True),
        "narrow heads N=37": _msa(5, 37, 8),
    },
}


def cases() -> list[KernelCase]:
    """All kinds of attention but the global one and the pointwise one."""
    return [
        KernelCase(
            op="attention",
            shape=name,
            setting=setting,
            inputs=partial(inputs, shape),
            # The weights of few rows in float64 fit any GPU; rows do not know of each other.
            check_inputs=partial(inputs, replace(shape, rows=min(shape.rows, 16))),
            reference=reference,
            ours=attention,
            peers=_peers(shape),
        )
        for setting, shapes in _SHAPES.items()
        for name, shape in shapes.items()
    ]


def _peers(shape: Shape) -> dict[str, Function]:
    if not shape.biased:
        return {}
    found: dict[str, Function] = {"cuEquivariance": cuequivariance_attention}
    if shape.rows == shape.length and shape.channels >= 16:
        found["trifast"] = trifast_attention
    return found


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    mask: Tensor,
    bias: Tensor | None,
    bias_scale: float,
    scale: float,
) -> Tensor:
    """Plain torch, the softmax in float32 at least; shapes as of the op."""
    logits = torch.einsum("brqhc,brkhc->brhqk", q * scale, k).to(wider(q.dtype))
    logits = logits + 1e9 * (mask.to(logits.dtype) - 1)[:, :, None, None, :]
    if bias is not None:
        logits = logits + bias_scale * bias[:, None].to(logits.dtype)
    out = torch.einsum("brhqk,brkhc->brqhc", torch.softmax(logits, dim=-1).to(v.dtype), v)
    return out if gate is None else out * torch.sigmoid(gate)


def cuequivariance_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    mask: Tensor,
    bias: Tensor,
    bias_scale: float,
    scale: float,
) -> Tensor:
    """``cuequivariance_torch.triangle_attention``, and the gate by torch.

    To multiply the bias by its scale costs it 2 us of some hundreds.
    """
    attend = import_module("cuequivariance_torch").triangle_attention
    heads_first = (x.transpose(2, 3) for x in (q, k, v))
    keep = mask.bool()[:, :, None, None]
    out = attend(*heads_first, bias_scale * bias[:, None], keep, scale=scale)
    return _gated(out.transpose(2, 3), gate)


def trifast_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    mask: Tensor,
    bias: Tensor,
    bias_scale: float,
    scale: float,
) -> Tensor:
    """``trifast.triangle_attention``, and the gate by torch.

    It scales by 1 / sqrt(C), and takes for granted that rows and positions are equally many. The
    correctness check has fewer rows.
    """
    attend = import_module("trifast").triangle_attention
    q = q * (scale * q.shape[-1] ** 0.5)
    rows, absent = q.shape[1], q.shape[2] - q.shape[1]
    hidden = ~mask.bool()
    if absent:
        q, k, v = (functional.pad(x, (0, 0, 0, 0, 0, 0, 0, absent)) for x in (q, k, v))
        hidden = functional.pad(hidden, (0, 0, 0, absent))
    heads_first = (x.permute(0, 3, 1, 2, 4) for x in (q, k, v))
    out = attend(*heads_first, bias_scale * bias, hidden)[:, :, :rows]
    return _gated(out.permute(0, 2, 3, 1, 4), gate)


def _gated(out: Tensor, gate: Tensor | None) -> Tensor:
    return out if gate is None else out * torch.sigmoid(gate)


def inputs(shape: Shape, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Arguments of the op."""
    draw = Draw(device, dtype)

    def rows(x: Tensor) -> Tensor:
        return x.detach().transpose(1, 2) if shape.by_columns else x.detach()

    places = (shape.length, shape.rows) if shape.by_columns else (shape.rows, shape.length)
    size = (shape.samples, *places, shape.heads, shape.channels)
    scale = LN2 if shape.in_bits else shape.channels**-0.5
    units = (shape.channels**-0.5 / scale, 1, 1, 1)
    q, k, v, gate = (rows(draw(*size, scale=unit)).requires_grad_() for unit in units)
    mask = rows(torch.ones(size[:3], device=device, dtype=dtype))
    bias = None
    if shape.biased:
        # Heads first, as the projection of the pair representation leaves them; at the ending
        # node a query is the second residue of its edge.
        bias = draw(shape.samples, shape.heads, shape.length, shape.length)
        bias = bias.detach().mT.requires_grad_() if shape.by_columns else bias
    return q, k, v, gate if shape.gated else None, mask, bias, LN2, scale
