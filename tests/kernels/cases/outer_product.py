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

from scalefold_kernels.ops.outer_product import materialised, triton
from scalefold_kernels.ops.outer_product.arguments import Factors, Mean, gradient_chains, mean_chain
from scalefold_kernels.ops.outer_product.hopper import chained, weight_gradient

_NUM_RES, _CHANNELS, _PAIR_CHANNELS = 256, 32, 128
_FEW, _MANY = 128, 1024

Cases = dict[str, tuple[ModuleType, str, Callable[[], Any]]]
"""By name: a kernel's module and name, and what launches it."""


def compile_cases() -> list[CompileCase]:
    """Every kernel at the model's sizes; each architecture with the tile that it would take."""
    found: list[CompileCase] = []
    for arch in ("sm_80", "sm_90"):
        for dtype in (torch.bfloat16, torch.float32):
            kind = str(dtype).removeprefix("torch.")
            found += _recorded(_few(dtype) | _many(dtype), f" {kind} {arch}", arch)
    return [*found, *_recorded(_hopper(), " on Hopper", "sm_90")]


def _recorded(cases: Cases, suffix: str, arch: str) -> Iterator[CompileCase]:
    for name, (module, kernel, launch) in cases.items():
        yield recorded(module, kernel, launch, name + suffix, arch)


def _few(dtype: torch.dtype) -> Cases:
    factors, mean = _given(_FEW, dtype)
    grad = mean.out

    def of_operand() -> None:
        triton._operand_gradient(gradient_chains(grad, factors)[0], factors.sizes)

    forward = partial(triton.forward, factors, mean, None)
    of_weight = partial(triton._weight_gradient, grad, factors)
    of_mean = partial(triton.mean_gradient, grad, mean.number)
    return {
        "forward": (triton, "chained_products_kernel", forward),
        "backward": (triton, "chained_products_kernel", of_operand),
        "weight gradient": (triton, "weight_gradient_kernel", of_weight),
        "mean gradient": (triton, "mean_gradient_kernel", of_mean),
    }


def _many(dtype: torch.dtype) -> Cases:
    factors, mean = _given(_MANY, dtype)
    a, b, weight = factors
    module, grad = materialised, mean.out
    outer = empty(len(a) * _CHANNELS, len(b) * _CHANNELS, dtype=dtype)
    forward = partial(module.forward, factors, mean, None)
    of_outer = partial(module._outer_gradient, grad, outer, a, weight)
    of_weight = partial(module._weight_gradient, grad, outer, a, weight)
    return {
        "projection": (module, "project_outer_kernel", forward),
        "outer gradient": (module, "outer_gradient_kernel", of_outer),
        "projection weight": (module, "outer_weight_gradient_kernel", of_weight),
    }


def _hopper() -> Cases:
    factors, mean = _given(_FEW, torch.bfloat16)
    sizes, grad = factors.sizes, mean.out

    def forward() -> None:
        chained.mean_products(mean_chain(factors), mean, sizes)

    def backward() -> None:
        chained.operand_gradients(gradient_chains(grad, factors), sizes)

    of_weight = partial(weight_gradient.weight_gradient_parts, grad, factors)
    return {
        "forward": (chained, "chained_products_kernel", forward),
        "backward": (chained, "chained_products_kernel", backward),
        "weight gradient": (weight_gradient, "weight_gradient_kernel", of_weight),
    }


def _given(num_seq: int, dtype: torch.dtype) -> tuple[Factors, Mean]:
    """Operands (N, C, S) of one sample with the weight, and what the mean takes besides."""
    a, b = (empty(_NUM_RES, _CHANNELS, num_seq, dtype=dtype) for _ in range(2))
    weight, bias = empty(_PAIR_CHANNELS, _CHANNELS**2, dtype=dtype), empty(_PAIR_CHANNELS)
    z = empty(_NUM_RES, _NUM_RES, _PAIR_CHANNELS, dtype=dtype)
    count = empty(_NUM_RES, _NUM_RES, dtype=torch.float32)
    return Factors(a, b, weight), Mean(count, bias.to(dtype), z, z)
