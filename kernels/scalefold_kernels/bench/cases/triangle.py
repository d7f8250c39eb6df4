"""The triangle multiplicative update: normalised projections, product, output."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import Draw, Inputs, KernelCase, plain_norm
from scalefold_kernels.ops.triangle import (
    triangle_output,
    triangle_product_incoming,
    triangle_product_outgoing,
    triangle_projection,
)

# (what, samples, residues, channels, setting)
_SHAPES = [
    ("N=256", 1, 256, 128, "initial training"),
    ("templates, N=256", 4, 256, 64, "initial training"),
    ("N=384", 1, 384, 128, "fine-tuning"),
    ("N=512", 1, 512, 128, "general"),
    ("N=1024", 1, 1024, 128, "general"),
    ("N=37", 1, 37, 128, "odd sizes"),
]

_PRODUCTS = {"outgoing": triangle_product_outgoing, "incoming": triangle_product_incoming}


def cases() -> list[KernelCase]:
    """Both directions."""
    return [
        KernelCase(
            op="triangle",
            shape=f"triangle multiplication, {direction} {what}",
            setting=setting,
            inputs=partial(_inputs, samples, length, channels),
            # The float64 reference of the longest takes more memory than a GPU has.
            check_inputs=partial(_inputs, samples, min(length, 384), channels),
            reference=partial(reference, direction),
            ours=partial(_ours, direction),
        )
        for what, samples, length, channels, setting in _SHAPES
        for direction in _PRODUCTS
    ]


def _ours(
    direction: str, z: Tensor, mask: Tensor, projection: list[Tensor], output: list[Tensor]
) -> Tensor:
    a, b, gate, z = triangle_projection(z, mask, *projection)
    norm_weight, norm_bias, weight, bias = output
    product = _PRODUCTS[direction](a, b)
    return triangle_output(z, product, gate, norm_weight, norm_bias, weight, bias, None)


def reference(
    direction: str, z: Tensor, mask: Tensor, projection: list[Tensor], output: list[Tensor]
) -> Tensor:
    """Plain torch."""
    normed = plain_norm(z, *projection[:2])
    maps = projection[2:]
    a, a_gate, b, b_gate, gate = (
        functional.linear(normed, *maps[i : i + 2]) for i in range(0, len(maps), 2)
    )
    a, b = (x * mask[..., None] * torch.sigmoid(g) for x, g in ((a, a_gate), (b, b_gate)))
    places = "bikc,bjkc->bijc" if direction == "outgoing" else "bkic,bkjc->bijc"
    product = plain_norm(torch.einsum(places, a, b), *output[:2])
    return z + functional.linear(product, *output[2:]) * torch.sigmoid(gate)


def _inputs(
    samples: int, length: int, channels: int, device: torch.device, dtype: torch.dtype
) -> Inputs:
    draw = Draw(device, dtype)
    z = draw.representation(samples, length, length, channels)
    mask = torch.ones(samples, length, length, device=device, dtype=dtype)
    mask[:, -length // 10 :] = 0
    maps = [x for _ in range(5) for x in draw.linear(channels, channels)]
    norm, out_norm = draw.norm(channels), draw.norm(channels)
    return z, mask, [*norm, *maps], [*out_norm, *draw.linear(channels, channels)]
