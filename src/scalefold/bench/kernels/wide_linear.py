"""Linear layers of few rows, in float32: those of the structure module."""

from __future__ import annotations

from functools import partial

import torch

from scalefold.bench.kernels.case import FP32_BYTES, Inputs, KernelCase, Work
from scalefold.ops import linear as reference
from scalefold.ops.triton import triton_ops

# (what, rows, channels in and out, ReLU, setting)
_LAYERS = [
    ("queries, keys, values and points, N=256", 256, 384, 1152, False, "initial training"),
    ("end of point attention, N=256", 256, 2112, 384, False, "initial training"),
    ("transition, N=256", 256, 384, 384, True, "initial training"),
    ("backbone update, N=256", 256, 384, 6, False, "initial training"),
    ("end of point attention, N=384", 384, 2112, 384, False, "fine-tuning"),
    ("transition, N=1024", 1024, 384, 384, True, "general"),
]


def cases() -> list[KernelCase]:
    """One layer of each kind."""
    return [_case(*layer) for layer in _LAYERS]


def _case(what: str, rows: int, inputs: int, outputs: int, relu: bool, setting: str) -> KernelCase:
    volume = FP32_BYTES * (rows * (inputs + outputs) + inputs * outputs)
    flops = 2 * rows * inputs * outputs
    return KernelCase(
        op="wide_linear",
        shape=what,
        setting=setting,
        inputs=partial(_inputs, rows, inputs, outputs, relu),
        reference=reference.wide_linear,
        ours=triton_ops().wide_linear,
        forward=Work(volume, flops),
        backward=Work(2 * volume, 2 * flops),
    )


def _inputs(
    rows: int, inputs: int, outputs: int, relu: bool, device: torch.device, dtype: torch.dtype
) -> Inputs:
    x = torch.randn(1, rows, inputs, device=device)
    weight = torch.randn(outputs, inputs, device=device) * inputs**-0.5
    bias = torch.randn(outputs, device=device)
    return *(t.requires_grad_() for t in (x, weight, bias)), relu
