"""Outer product mean: configurations that the offline compilation checks.

The launches run on tensors without memory, see `recorded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from tests.kernels.offline.case import CompileCase, recorded
from torch import Tensor

from scalefold_kernels.ops.outer_product import arguments, triton, triton_materialised
from scalefold_kernels.ops.outer_product.arguments import Factors, Mean, gradient_chains, mean_chain
from scalefold_kernels.ops.outer_product.hopper import chained as hopper_chained
from scalefold_kernels.ops.outer_product.hopper import weight_gradient as hopper_weight_gradient
from scalefold_kernels.ops.outer_product_operands import triton as operands

_NUM_RES, _CHANNELS, _PAIR_CHANNELS = 256, 32, 128
_FEW, _MANY = 128, 1024

Cases = dict[str, tuple[ModuleType, str, Callable[[], Any]]]
"""By name: a kernel's module and name, and what launches it."""


def compile_cases() -> list[CompileCase]:
    """Every kernel at the model's sizes; each architecture with the tile that it would take."""
    found: list[CompileCase] = []
    for arch in ("sm_80", "sm_90"):
        with _on(arch):
            for dtype in (torch.bfloat16, torch.float32):
                kind = str(dtype).removeprefix("torch.")
                found += _recorded(_few(dtype) | _many(dtype), f" {kind} {arch}", arch)
            found += _recorded(_operands(64) | _operands(256), f" {arch}", arch)
    with _on("sm_90"):
        found += _recorded(_hopper(), " on Hopper", "sm_90")
    return found


def _recorded(cases: Cases, suffix: str, arch: str) -> Iterator[CompileCase]:
    for name, (module, kernel, launch) in cases.items():
        yield recorded(module, kernel, launch, name + suffix, arch)


@contextmanager
def _on(arch: str) -> Iterator[None]:
    """Tiles and numbers of CTAs for an A100, or for an H100 or H200."""
    with ExitStack() as stack:
        for module in (arguments, operands):
            stack.enter_context(patch.object(module, "architecture", lambda _: arch))
        num_sms = {"sm_80": 108, "sm_90": 132}[arch]
        for module in (arguments, hopper_chained):
            stack.enter_context(patch.object(module, "num_sms", lambda _: num_sms))
        yield


def _few(dtype: torch.dtype) -> Cases:
    factors, mean = _given(_FEW, dtype)
    grad = mean.out
    of_a, _ = gradient_chains(grad, factors)
    forward = partial(triton.forward, factors, mean, None)
    mean_gradient = partial(triton.mean_gradient, grad, mean.number)
    return {
        "forward": (triton, "chained_products_kernel", forward),
        "backward": (
            triton,
            "chained_products_kernel",
            partial(triton._operand_gradient, of_a, factors.sizes),
        ),
        "weight gradient": (
            triton,
            "weight_gradient_kernel",
            partial(triton._weight_gradient, grad, factors),
        ),
        "mean gradient": (triton, "mean_gradient_kernel", mean_gradient),
    }


def _many(dtype: torch.dtype) -> Cases:
    factors, mean = _given(_MANY, dtype)
    a, b, weight = factors
    module, grad = triton_materialised, mean.out
    outer = _empty(len(a) * _CHANNELS, len(b) * _CHANNELS, dtype=dtype)
    forward = partial(module.forward, factors, mean, None)
    of_outer = partial(module._outer_gradient, grad, outer, a, weight)
    of_weight = partial(module._weight_gradient, grad, outer, a, weight)
    return {
        "projection": (module, "project_outer_kernel", forward),
        "outer gradient": (module, "outer_gradient_kernel", of_outer),
        "projection weight": (module, "outer_weight_gradient_kernel", of_weight),
    }


def _operands(channels: int) -> Cases:
    m = _empty(1, _FEW, _NUM_RES, channels)
    both = _empty(2, 1, _NUM_RES, _CHANNELS, _FEW)
    mask = _empty(1, _FEW, _NUM_RES, dtype=torch.float32)
    row, column, weight = _empty(channels), _empty(_CHANNELS), _empty(_CHANNELS, channels)
    parameters = operands.Parameters(row, row, weight, column, weight, column)
    sums = _empty(2 * _CHANNELS * (channels + 1), dtype=torch.float32)

    def differentiate(other: str) -> None:
        with (
            patch.object(operands, other, MagicMock()),
            patch.object(operands, "sum_rows", lambda *_: sums),
        ):
            operands.backward(both, m, mask, parameters, m, m, sums.bfloat16())

    launches = {
        "forward": partial(operands.forward, m, mask, parameters, both),
        "backward": partial(differentiate, "parameters_kernel"),
        "parameters": partial(differentiate, "backward_kernel"),
    }
    return {
        f"operands {name} M={channels}": (operands, f"{name}_kernel", launch)
        for name, launch in launches.items()
    }


def _hopper() -> Cases:
    factors, mean = _given(_FEW, torch.bfloat16)
    sizes, grad = factors.sizes, mean.out
    forward, backward = mean_chain(factors), gradient_chains(grad, factors)
    return {
        "forward": (
            hopper_chained,
            "chained_products_kernel",
            partial(hopper_chained.mean_products, forward, mean, sizes),
        ),
        "backward": (
            hopper_chained,
            "chained_products_kernel",
            partial(hopper_chained.operand_gradients, backward, sizes),
        ),
        "weight gradient": (
            hopper_weight_gradient,
            "weight_gradient_kernel",
            partial(hopper_weight_gradient.weight_gradient_parts, grad, factors),
        ),
    }


def _given(num_seq: int, dtype: torch.dtype) -> tuple[Factors, Mean]:
    """Operands (N, C, S) of one sample with the weight, and what the mean takes besides."""
    a, b = (_empty(_NUM_RES, _CHANNELS, num_seq, dtype=dtype) for _ in range(2))
    weight, bias = _empty(_PAIR_CHANNELS, _CHANNELS**2, dtype=dtype), _empty(_PAIR_CHANNELS)
    z = _empty(_NUM_RES, _NUM_RES, _PAIR_CHANNELS, dtype=dtype)
    count = _empty(_NUM_RES, _NUM_RES, dtype=torch.float32)
    return Factors(a, b, weight), Mean(count, bias.to(dtype), z, z)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
