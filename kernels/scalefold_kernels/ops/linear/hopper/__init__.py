"""The residual linear map on Hopper GPUs (H100, H200)."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.linear.hopper.backward import backward
from scalefold_kernels.ops.linear.hopper.forward import forward
from scalefold_kernels.ops.linear.hopper.parts import lines_of
from scalefold_kernels.ops.linear.op import Call
from scalefold_kernels.tma import VECTOR, why_unreachable

__all__ = ["backward", "forward", "why_not"]

MAX_CHANNELS = 256
"""Most inputs (forward) or outputs (backward): shared memory holds whole rows of them."""

MIN_OUTPUTS = 65
"""Backward: a warp group has half of a gradient's rows, and no fewer than 64."""


def why_not(function: str, call: Call, *matrices: Tensor) -> str | None:
    if matrices[0].dtype != torch.bfloat16:
        return f"takes bfloat16, not {matrices[0].dtype}"
    if call.channels % VECTOR or call.inputs % VECTOR:
        return (
            f"takes inputs and outputs in multiples of {VECTOR}, found {call.inputs} and "
            f"{call.channels}"
        )
    whole = call.inputs if function == "forward" else call.channels
    if whole > MAX_CHANNELS:
        return f"takes {MAX_CHANNELS} channels at most, found {whole}"
    if function == "backward" and call.channels < MIN_OUTPUTS:
        return f"takes {MIN_OUTPUTS} outputs or more, found {call.channels}"
    if call.dropout is not None:
        if call.dims != 3 or call.shared not in (1, 2):
            return "takes masks that lines or positions of (B, D1, D2, C) share"
        # A tile's lines are of one sample.
        if call.batch > 1 and call.size1 % lines_of(call.shared):
            return f"takes several samples of {call.size1} lines only without a mask"
    return why_unreachable(*(matrix.view(-1, matrix.shape[-1]) for matrix in matrices))
