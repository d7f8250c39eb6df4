"""Attention with pair bias, mask and gate, in each place where AlphaFold2 has it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from scalefold_kernels.bench.case import BF16_BYTES, Inputs, KernelCase, Work, wider
from scalefold_kernels.bench.peers import attention_peers
from scalefold_kernels.ops.attention import attention

LN2 = math.log(2)
"""Scale of a bias in bits, which kernels take as it is: their exponentials are powers of 2."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention.

    ``order``: of rows, positions (N) and heads in memory. ``trained``: the bias has a gradient.
    ``in_bits``: the projection leaves the queries in bits, as the bias is.
    """

    samples: int
    rows: int
    length: int
    heads: int
    channels: int
    biased: bool = True
    order: str = "RNH"
    gated: bool = True
    trained: bool = True
    in_bits: bool = True

    @property
    def along_columns(self) -> bool:
        """Whether it is along the columns of a representation whose rows are contiguous."""
        return self.order.index("N") < self.order.index("R")

    @property
    def elements(self) -> int:
        """Of q."""
        return self.samples * self.rows * self.length * self.heads * self.channels

    @property
    def weights(self) -> int:
        """One for each query and key of each row and head."""
        return self.samples * self.rows * self.heads * self.length**2


def _triangle(length: int) -> Shape:
    return Shape(1, length, length, 4, 32)


_SHAPES = [
    ("triangle attention N=256", _triangle(256), "initial training"),
    (
        "triangle attention, ending node N=256",
        replace(_triangle(256), order="NRH"),
        "initial training",
    ),
    ("triangle attention without gate N=256", replace(_triangle(256), gated=False), "general"),
    ("MSA row attention 128 x 256", Shape(1, 128, 256, 8, 32, in_bits=False), "initial training"),
    (
        "MSA column attention 128 x 256",
        Shape(1, 256, 128, 8, 32, biased=False, order="NRH", in_bits=False),
        "initial training",
    ),
    (
        "extra MSA row attention 1024 x 256",
        Shape(1, 1024, 256, 8, 8, in_bits=False),
        "initial training",
    ),
    ("template triangle attention N=256", Shape(4, 256, 256, 4, 16), "initial training"),
    ("triangle attention N=384", _triangle(384), "fine-tuning"),
    ("MSA row attention 512 x 384", Shape(1, 512, 384, 8, 32, in_bits=False), "fine-tuning"),
    ("triangle attention N=512", _triangle(512), "general"),
    ("triangle attention N=1024", _triangle(1024), "general"),
    # What others do, in the order in memory that they take without copies.
    *(
        (
            f"triangle attention without {what} N={length}",
            replace(_triangle(length), gated=False, order=order, trained=trained, biased=biased),
            "comparison",
        )
        for what, order, trained, biased in (
            ("gate, heads before residues", "RHN", True, True),
            ("gate, heads before rows", "HRN", True, True),
            ("gate and bias's gradient, heads before residues", "RHN", False, True),
            ("gate and bias, heads before residues", "RHN", True, False),
        )
        for length in (256, 384)
    ),
    ("rows N=37", Shape(2, 5, 37, 4, 32), "odd sizes"),
    ("columns N=37", Shape(1, 5, 37, 2, 16, biased=False, order="NRH"), "odd sizes"),
    ("narrow heads N=37", Shape(1, 5, 37, 8, 8, in_bits=False), "odd sizes"),
]


def cases() -> list[KernelCase]:
    """All kinds of attention but the global one and that of templates."""
    return [_case(*shape) for shape in _SHAPES]


def _case(name: str, shape: Shape, setting: str) -> KernelCase:
    # The weights of few rows in float64 fit any GPU; rows do not know of each other.
    few = replace(shape, rows=min(shape.rows, 16))
    factor = 5 if shape.gated else 4
    return KernelCase(
        op="attention",
        shape=name,
        setting=setting,
        inputs=partial(inputs, shape),
        check_inputs=partial(inputs, few),
        reference=reference,
        ours=attention,
        # Read q, k, v and gate, write the result; two products; an exponential a weight.
        forward=Work(
            bytes=factor * shape.elements * BF16_BYTES,
            flops=4 * shape.weights * shape.channels,
            exponentials=shape.weights,
        ),
        # Read what forward had, its result and gradient, write four gradients; five products. The
        # weights are computed again once.
        backward=Work(
            bytes=2 * factor * shape.elements * BF16_BYTES,
            flops=10 * shape.weights * shape.channels,
            exponentials=shape.weights,
        ),
        peers=attention_peers(
            biased=shape.biased,
            trained=shape.trained,
            samples=shape.samples,
            square=shape.rows == shape.length,
            channels=shape.channels,
        ),
    )


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


def inputs(shape: Shape, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Arguments of the op, in memory in the order of the shape."""
    generator = torch.Generator(device).manual_seed(0)
    sizes = {"R": shape.rows, "N": shape.length, "H": shape.heads}
    places = [1 + shape.order.index(size) for size in sizes]
    scale = LN2 if shape.in_bits else shape.channels**-0.5
    parts = []
    for unit in (shape.channels**-0.5 / scale, 1, 1, 1)[: 4 if shape.gated else 3]:
        size = [shape.samples, *(sizes[name] for name in shape.order), shape.channels]
        x = (unit * torch.randn(*size, generator=generator, device=device)).to(dtype)
        parts.append(x.permute(0, *places, 4).requires_grad_())
    size = [shape.samples, *(sizes[name] for name in shape.order if name != "H")]
    mask = torch.ones(*size, device=device, dtype=dtype)
    mask = mask.transpose(1, 2) if shape.along_columns else mask
    bias = None
    if shape.biased:
        # Heads first, as the projection of the pair representation leaves them; at the ending
        # node a query is the second residue of its edge.
        pairs = (shape.samples, shape.heads, shape.length, shape.length)
        bias = torch.randn(*pairs, generator=generator, device=device).to(dtype)
        bias = (bias.mT if shape.along_columns else bias).requires_grad_(shape.trained)
    gate = parts[3] if shape.gated else None
    return *parts[:3], gate, mask, bias, LN2, scale
