"""The triangle multiplicative update: normalised projections, product, output."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.bench.case import BF16_BYTES, Inputs, KernelCase, Work, leaf
from scalefold_kernels.bench.cases.norm import plain_norm
from scalefold_kernels.bench.peers import triangle_multiplication_peers
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
    return [_case(direction, *shape) for shape in _SHAPES for direction in _PRODUCTS]


def _case(
    direction: str, what: str, samples: int, length: int, channels: int, setting: str
) -> KernelCase:
    positions = samples * length**2
    volume, exponentials = positions * channels * BF16_BYTES, 2 * 3 * positions * channels
    return KernelCase(
        op="triangle",
        shape=f"triangle multiplication, {direction} {what}",
        setting=setting,
        inputs=partial(_inputs, samples, length, channels),
        # The float64 reference of the longest takes more memory than a GPU has.
        check_inputs=partial(_inputs, samples, min(length, 384), channels),
        reference=partial(reference, direction),
        ours=partial(_ours, direction),
        # Read z twice; write and read a, b, gate and product; write the sum. Three sigmoids.
        forward=Work(11 * volume, 2 * positions * channels * (6 * channels + length), exponentials),
        # What the three parts pass on, each tensor once in each part that needs it. Output: three
        # tensors in, two out; product: three in, two out; projection: seven in, one out. The
        # operands' gates and the output's projection are computed again.
        backward=Work(
            18 * volume, 2 * positions * channels * (15 * channels + 2 * length), exponentials
        ),
        peers=triangle_multiplication_peers(direction),
    )


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
    draw = partial(leaf, device, dtype)

    def norm() -> list[Tensor]:
        return [draw(channels, scale=0.1, shift=1.0), draw(channels, scale=0.1)]

    def linear() -> list[Tensor]:
        return [draw(channels, channels, scale=channels**-0.5), draw(channels, scale=0.1)]

    z = draw(samples, length, length, channels, scale=2.0, shift=0.5)
    mask = torch.ones(samples, length, length, device=device, dtype=dtype)
    mask[:, -length // 10 :] = 0
    projections = [x for _ in range(5) for x in linear()]
    return z, mask, [*norm(), *projections], [*norm(), *linear()]
