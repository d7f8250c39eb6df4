"""The triangle multiplicative update: normalised projections, product, output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from scalefold.bench.kernels.case import BF16_BYTES, Function, Inputs, KernelCase, Work, leaf
from scalefold.ops import TORCH, Ops
from scalefold.ops.triton import triton_ops

# (what, samples, residues, channels, setting)
_SHAPES = [
    ("N=256", 1, 256, 128, "initial training"),
    ("templates, N=256", 4, 256, 64, "initial training"),
    ("N=384", 1, 384, 128, "fine-tuning"),
    ("N=512", 1, 512, 128, "general"),
    ("N=1024", 1, 1024, 128, "general"),
]


def cases() -> list[KernelCase]:
    """Both directions."""
    return [_case(d, *shape) for shape in _SHAPES for d in ("outgoing", "incoming")]


def _case(
    direction: str, what: str, samples: int, length: int, channels: int, setting: str
) -> KernelCase:
    return KernelCase(
        op="triangle",
        shape=f"triangle multiplication, {direction} {what}",
        setting=setting,
        inputs=partial(_inputs, samples, length, channels),
        # The float64 reference of the longest takes more memory than a GPU has.
        check_inputs=partial(_inputs, samples, min(length, 384), channels),
        reference=_update(TORCH, direction),
        ours=_update(triton_ops(), direction),
        forward=_forward(samples, length, channels),
        backward=_backward(samples, length, channels),
        peers={"cuEquivariance": partial(_cuequivariance, direction)},
    )


def _update(ops: Ops, direction: str) -> Callable[..., Tensor]:
    multiply = getattr(ops, f"triangle_product_{direction}")

    def update(z: Tensor, mask: Tensor, projection: list[Tensor], output: list[Tensor]) -> Tensor:
        a, b, gate, z = ops.triangle_projection(z, mask, *projection)
        return ops.triangle_output(z, multiply(a, b), gate, *output, None)

    return update


def _forward(samples: int, length: int, channels: int) -> Work:
    """Read z twice; write and read a, b, gate and product; write the sum. Three sigmoids."""
    positions = samples * length**2
    return Work(
        bytes=11 * positions * channels * BF16_BYTES,
        flops=2 * positions * channels * (6 * channels + length),
        exponentials=2 * 3 * positions * channels,
    )


def _backward(samples: int, length: int, channels: int) -> Work:
    """What the three parts pass on, each tensor once in each part that needs it.

    Output: three tensors in, two out; product: three in, two out; projection: seven in, one out.
    The operands' gates and the output's projection are computed again.
    """
    positions = samples * length**2
    return Work(
        bytes=18 * positions * channels * BF16_BYTES,
        flops=2 * positions * channels * (15 * channels + 2 * length),
        exponentials=2 * 3 * positions * channels,
    )


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


def _cuequivariance(direction: str) -> Function | None:
    try:
        peer = import_module("cuequivariance_torch").triangle_multiplicative_update
    except ImportError:
        return None

    def update(z: Tensor, mask: Tensor, projection: list[Tensor], output: list[Tensor]) -> Any:
        scale, shift, a, a_bias, a_gate, a_gate_bias, b, b_bias, b_gate, b_gate_bias, *gate = (
            projection
        )
        return z + peer(
            z,
            direction=direction,
            mask=mask,
            norm_in_weight=scale,
            norm_in_bias=shift,
            p_in_weight=torch.cat([a, b]),
            p_in_bias=torch.cat([a_bias, b_bias]),
            g_in_weight=torch.cat([a_gate, b_gate]),
            g_in_bias=torch.cat([a_gate_bias, b_gate_bias]),
            norm_out_weight=output[0],
            norm_out_bias=output[1],
            p_out_weight=output[2],
            p_out_bias=output[3],
            g_out_weight=gate[0],
            g_out_bias=gate[1],
        )

    return update
