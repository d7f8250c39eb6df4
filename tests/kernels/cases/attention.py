"""Configurations for the offline compilation: what the launches ask for at the model's shapes.

The launches run on tensors without memory, with the kernels replaced by notes of their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, recorded
from torch import Tensor

from scalefold_kernels.ops.attention import (
    hopper_backward,
    hopper_launch,
    hopper_plan,
    portable,
)
from scalefold_kernels.ops.attention import kernel as portable_kernels
from scalefold_kernels.ops.attention.arguments import Gradients, Inputs, checked

_KINDS = {torch.bfloat16: "bf16", torch.float32: "fp32"}

BITS = math.log(2)
"""The unit of the model's biases, and of its queries of triangles."""

# Rows, length, heads, channels, gate; the order of the bias's queries and keys in memory, or None;
# whether queries are in bits, as the bias is.
_SHAPES = {
    "triangle N=256": (256, 256, 4, 32, True, "QK", True),
    "triangle N=256 without gate": (256, 256, 4, 32, False, "QK", True),
    "ending node N=256": (256, 256, 4, 32, True, "KQ", True),
    "triangle N=384": (384, 384, 4, 32, True, "QK", True),
    "ending node N=384": (384, 384, 4, 32, True, "KQ", True),
    "triangle N=512": (512, 512, 4, 32, True, "QK", True),
    "MSA row": (128, 256, 8, 32, True, "QK", False),
    "MSA row N=384": (512, 384, 8, 32, True, "QK", False),
    "MSA column": (256, 128, 8, 32, True, None, False),
    "extra MSA row": (1024, 256, 8, 8, True, "QK", False),
    "extra MSA row N=384": (1024, 384, 8, 8, True, "QK", False),
    "template": (256, 256, 4, 16, True, "QK", True),
    "wide heads": (64, 128, 2, 64, False, "QK", False),
}

_PORTABLE = [
    ("triangle N=256", torch.bfloat16),
    ("MSA column", torch.bfloat16),
    ("wide heads", torch.bfloat16),
    ("triangle N=256", torch.float32),
]


def compile_cases() -> list[CompileCase]:
    """All kernels of the folder."""
    return [*_portable(), *_hopper()]


def _portable() -> Iterator[CompileCase]:
    for arch in ("sm_80", "sm_90"):
        for name, dtype in _PORTABLE:
            inputs, out, lse = _arguments(name, dtype)
            grads = lse, lse, out
            launches: dict[str, Callable[[], Any]] = {
                "forward": partial(portable.forward, inputs, out, lse),
                "backward_gate": partial(portable.backward_gate, inputs, out, out, out, out, lse),
                "backward_queries": partial(portable.backward_queries, inputs, *grads, inputs.q),
                "backward_keys": partial(
                    portable.backward_keys, inputs, *grads, inputs.q, inputs.q
                ),
            }
            if inputs.bias is not None:
                launches["backward_bias"] = partial(
                    portable.backward_bias, inputs, inputs.bias, *grads
                )
            for kernel, launch in launches.items():
                described = f"{kernel} for {arch}, {name}, {_KINDS[dtype]}"
                with patch.object(portable, "architecture", lambda _, arch=arch: arch):
                    yield recorded(portable_kernels, f"{kernel}_kernel", launch, described, arch)


def _hopper() -> Iterator[CompileCase]:
    for name in _SHAPES:
        inputs, out, lse = _arguments(name, torch.bfloat16)
        if not hopper_launch.serves(inputs):
            continue
        launches: dict[str, tuple[ModuleType, Callable[[], Any]]] = {
            f"backward_{kernel}": (hopper_backward, launch)
            for kernel, launch in _backward(inputs, out, lse).items()
        }
        launches["forward"] = hopper_launch, partial(hopper_launch.forward, inputs, out, lse)
        for kernel, (module, launch) in launches.items():
            # H100 and H200: 132 SMs.
            with patch.object(hopper_plan, "num_sms", lambda _: 132):
                described = f"{kernel} on Hopper, {name}"
                yield recorded(module, f"{kernel}_kernel", launch, described, "sm_90")


def _backward(inputs: Inputs, out: Tensor, lse: Tensor) -> dict[str, Callable[[], Any]]:
    """Launches of the kernels of backward that run where only some gradients are wanted, or all."""
    bias, gradients = inputs.bias, Gradients(inputs.q, inputs.k, inputs.v, inputs.gate)
    if hopper_launch.whole_rows(inputs):
        return {"row": partial(hopper_backward.row, inputs, out, lse, out, gradients)}
    shared = hopper_backward.Shared(inputs.q, out, lse)
    queries = partial(hopper_backward.queries, inputs, bias, lse, shared, inputs.q)
    launches: dict[str, Callable[[], Any]] = {
        "keys": partial(hopper_backward.keys, inputs, bias, lse, shared, inputs.k, inputs.v),
        "queries": partial(queries, False),
    }
    if bias is not None and hopper_launch.sums_in_registers(inputs):
        more = inputs.num_keys > hopper_backward.BIAS_KEYS
        waiting = hopper_backward.new_waiting(inputs) if more else None
        launches["queries_bias"] = partial(
            hopper_backward.queries_bias, inputs, bias, out, lse, out, gradients, shared, waiting
        )
        if more:
            launches["queries"] = partial(queries, True, waiting)
    elif bias is not None:
        launches["queries"] = partial(queries, True)
    return launches


def _arguments(name: str, dtype: torch.dtype) -> tuple[Inputs, Tensor, Tensor]:
    rows, length, heads, channels, gated, order, in_bits = _SHAPES[name]
    packed = torch.empty((1, rows, length, 4, heads, channels), dtype=dtype, device="meta")
    q, k, v, gate = packed.unbind(3)
    mask = torch.empty((1, rows, length), dtype=dtype, device="meta")
    bias = None
    if order is not None:
        bias = torch.empty((1, heads, length, length), dtype=dtype, device="meta")
        bias = bias.mT if order == "KQ" else bias
    statistics = torch.empty((1, rows, heads, length), device="meta")
    out = torch.empty((1, rows, length, heads, channels), dtype=dtype, device="meta")
    scale = BITS if in_bits else None
    inputs = checked(q, k, v, gate if gated else None, mask, bias, BITS, scale)
    return inputs, out, statistics
