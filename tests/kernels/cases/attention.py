"""Configurations for the offline compilation: what the launches ask for at the model's shapes.

The launches run on tensors without memory, with the kernels replaced by notes of their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import triton
from tests.kernels.offline.case import CompileCase, empty, recorded

from scalefold_kernels.ops.attention import hopper
from scalefold_kernels.ops.attention.arguments import Call, Gradients, Kept, checked, new_rest

_TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}

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
    "heads of 64 channels": (64, 128, 2, 64, False, "QK", False),
}

_SPILLED = 16
"""Bytes of numbers that `backward_queries_bias` looks at once a row: with more than 256 keys, and
with newer versions of Triton."""

_SPILLED_ONCE = 40
"""Bytes of addresses that three or four warp groups of forward, if they keep the rest, load before
a CTA's first row; of three, with Triton 3.7 alone."""

_WITHOUT_REST = ("triangle N=256", "ending node N=256", "triangle N=384", "MSA row", "template")
"""Also compiled as passes without gradients launch them."""

_TRITON = [
    ("triangle N=256", torch.bfloat16),
    ("MSA column", torch.bfloat16),
    ("heads of 64 channels", torch.bfloat16),
    ("triangle N=256", torch.float32),
]


def compile_cases() -> list[CompileCase]:
    """All kernels of the folder."""
    return [*_triton(), *_hopper()]


def _module(name: str) -> ModuleType:
    """A module of the op; the packages have functions of the same names."""
    return import_module(f"scalefold_kernels.ops.attention.{name}")


def _triton() -> Iterator[CompileCase]:
    forward, backward = _module("triton.forward"), _module("triton.backward")
    for arch in ("sm_80", "sm_90"):
        for name, dtype in _TRITON:
            call, kept = _arguments(name, dtype)
            out, lse, _ = kept
            q, grads = call.q, (lse, lse, out)
            launches: dict[str, tuple[ModuleType, Callable[[], Any]]] = {
                "forward": (forward, partial(forward.forward, call, *kept)),
                "backward_gate": (
                    backward,
                    partial(backward.backward_gate, call, kept, out, out, out, lse),
                ),
                "backward_queries": (backward, partial(backward.backward_queries, call, *grads, q)),
                "backward_keys": (backward, partial(backward.backward_keys, call, *grads, q, q)),
            }
            if call.bias is not None:
                launch = partial(backward.backward_bias, call, call.bias, *grads)
                launches["backward_bias"] = backward, launch
            for kernel, (module, launch) in launches.items():
                described = f"{kernel} for {arch}, {name}, {_TYPES[dtype]}"
                yield recorded(module, f"attention_{kernel}_kernel", launch, described, arch)


def _hopper() -> Iterator[CompileCase]:
    for name in _SHAPES:
        call, kept = _arguments(name, torch.bfloat16)
        if hopper.why_not("forward", call):
            continue
        forward = _module("hopper.forward").launch
        launches = {"forward": partial(forward, call, kept)}
        if name in _WITHOUT_REST:
            launches["forward that keeps no rest"] = partial(
                forward, call, kept._replace(rest=None)
            )
        launches |= _hopper_backward(call, kept)
        for described, launch in launches.items():
            kernel = described.split()[0]
            module = _module(f"hopper.{kernel}")
            spills = call.num_keys > 256 or not triton.__version__.startswith("3.6.")
            known = _SPILLED if kernel == "backward_queries_bias" and spills else 0
            if described == "forward" and module.constants(call)["GROUPS"] > 2:
                known = _SPILLED_ONCE
            title = f"{described} on Hopper, {name}"
            kernel = f"attention_{kernel}_hopper_kernel"
            case = recorded(module, kernel, launch, title, "sm_90")
            yield replace(case, spilled_bytes=known)


def _hopper_backward(call: Call, kept: Kept) -> dict[str, partial[Any]]:
    """Launches of the kernels of backward that run where only some gradients are wanted, or all."""
    out, lse, _ = kept
    bias, gradients = call.bias, Gradients(call.q, call.k, call.v, call.gate)
    keys, queries, row = (_module(f"hopper.backward_{x}") for x in ("keys", "queries", "row"))
    if row.why_not("backward", call) is None:
        return {"backward_row": partial(row.backward, call, kept, out, gradients, False)}
    shared = keys.Shared(call.q, out, lse)
    of_queries = partial(queries.launch, call, bias, lse, shared, call.q)
    launches: dict[str, partial[Any]] = {
        "backward_keys": partial(keys.launch, call, bias, lse, shared, call.k, call.v),
        "backward_queries": partial(of_queries, bias is not None),
    }
    if bias is not None and hopper.sums_in_registers(call):
        first = _module("hopper.backward_queries_bias")
        more = call.num_keys > first.KEYS
        waiting = queries.new_waiting(call) if more else None
        launches["backward_queries_bias"] = partial(
            first.launch, call, bias, kept, out, gradients, shared, waiting
        )
        launches["backward_queries"] = (
            partial(of_queries, True, first.KEYS, waiting) if more else partial(of_queries, False)
        )
    return launches


def _arguments(name: str, dtype: torch.dtype) -> tuple[Call, Kept]:
    rows, length, heads, channels, gated, order, in_bits = _SHAPES[name]
    q, k, v, gate = empty(1, rows, length, 4, heads, channels, dtype=dtype).unbind(3)
    mask = empty(1, rows, length, dtype=dtype)
    bias = None
    if order is not None:
        bias = empty(1, heads, length, length, dtype=dtype)
        bias = bias.mT if order == "KQ" else bias
    statistics = empty(1, rows, heads, length, dtype=torch.float32)
    out = empty(1, rows, length, heads, channels, dtype=dtype)
    scale = BITS if in_bits else None
    call = checked(q, k, v, gate if gated else None, mask, bias, BITS, scale)
    keeps = bias is not None and dtype != torch.float32
    return call, Kept(out, statistics, new_rest(q) if keeps else None)
