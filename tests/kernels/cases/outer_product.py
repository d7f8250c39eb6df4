"""Outer product mean: configurations that the offline compilation checks.

The launches run on tensors without memory, see `recorded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded

from scalefold_kernels.ops.outer_product import triton
from scalefold_kernels.ops.outer_product.hopper import chained, weight_gradient
from scalefold_kernels.ops.outer_product.op import Factors, Mean
from scalefold_kernels.tiles import dtype_name

_NUM_RES, _CHANNELS, _PAIR_CHANNELS = 256, 32, 128
_FEW, _MANY = 128, 1024

Cases = dict[str, tuple[ModuleType, str, Callable[[], Any]]]
"""By name: a kernel's module and name, and what launches it."""


def compile_cases() -> list[CompileCase]:
    """Every kernel at the model's sizes; each architecture with the configuration it would take."""
    found: list[CompileCase] = []
    for arch in ("sm_80", "sm_90"):
        for dtype in (torch.bfloat16, torch.float32):
            found += _recorded(_portable(dtype), f" {dtype_name(dtype)} {arch}", arch)
    return [*found, *_recorded(_hopper(), " on Hopper", "sm_90")]


def _recorded(cases: Cases, suffix: str, arch: str) -> Iterator[CompileCase]:
    for name, (module, kernel, launch) in cases.items():
        yield recorded(module, kernel, launch, name + suffix, arch)


def _portable(dtype: torch.dtype) -> Cases:
    factors, mean = _given(_MANY, dtype)
    grad, outer = mean.out, empty(*[_NUM_RES * _CHANNELS] * 2, dtype=dtype)
    forward = partial(triton.forward, factors, mean, None)
    of_mean = partial(triton.mean_gradient, grad, mean.number)
    of_outer = partial(triton._outer_gradient, grad, outer, factors)
    of_weight = partial(triton._weight_gradient, grad, outer, factors)
    return {
        "projection": (triton, "outer_product_projection_kernel", forward),
        "mean gradient": (triton, "outer_product_mean_gradient_kernel", of_mean),
        "outer gradient": (triton, "outer_product_gradient_kernel", of_outer),
        "projection weight": (triton, "outer_product_weight_gradient_kernel", of_weight),
    }


def _hopper() -> Cases:
    factors, mean = _given(_FEW, torch.bfloat16)
    grad = mean.out
    forward = partial(chained.mean_products, factors, mean)
    backward = partial(chained.operand_gradients, grad, factors)
    of_weight = partial(weight_gradient.weight_gradient_parts, grad, factors)
    return {
        "forward": (chained, "outer_product_chained_hopper_kernel", forward),
        "backward": (chained, "outer_product_chained_hopper_kernel", backward),
        "weight gradient": (
            weight_gradient,
            "outer_product_weight_gradient_hopper_kernel",
            of_weight,
        ),
    }


def _given(num_seq: int, dtype: torch.dtype) -> tuple[Factors, Mean]:
    """Operands (N, C, S) of one sample with the weight, and what the mean takes besides."""
    a, b = (empty(_NUM_RES, _CHANNELS, num_seq, dtype=dtype) for _ in range(2))
    weight, bias = empty(_PAIR_CHANNELS, _CHANNELS**2, dtype=dtype), empty(_PAIR_CHANNELS)
    z = empty(_NUM_RES, _NUM_RES, _PAIR_CHANNELS, dtype=dtype)
    count = empty(_NUM_RES, _NUM_RES, dtype=torch.float32)
    return Factors(a, b, weight), Mean(count, bias.to(dtype), z, z)
