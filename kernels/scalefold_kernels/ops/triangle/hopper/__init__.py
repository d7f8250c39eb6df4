"""Triangle multiplication on Hopper GPUs (H100, H200), in Gluon."""

from __future__ import annotations

import torch

from scalefold_kernels.ops.triangle.arguments import Sizes
from scalefold_kernels.ops.triangle.hopper.output import output_forward
from scalefold_kernels.ops.triangle.hopper.output_gradient import output_backward
from scalefold_kernels.ops.triangle.hopper.projection import projection_forward
from scalefold_kernels.ops.triangle.hopper.projection_gradient import projection_backward
from scalefold_kernels.tma import VECTOR

__all__ = [
    "output_backward",
    "output_forward",
    "projection_backward",
    "projection_forward",
    "why_not",
]

CHANNELS = (64, 128)
"""Numbers of channels whose weights and tiles fit in shared memory."""


def why_not(function: str, sizes: Sizes) -> str | None:
    """Why the kernels do not take these sizes.

    Nothing here looks at data, so that the same kernel runs at each step.
    """
    if sizes.dtype != torch.bfloat16:
        return f"takes bfloat16, not {sizes.dtype}"
    if sizes.pair != sizes.hidden or sizes.pair not in CHANNELS:
        return (
            f"takes as many hidden channels as pair channels, {CHANNELS[0]} or {CHANNELS[1]}; "
            f"found {sizes.hidden} and {sizes.pair}"
        )
    if sizes.positions == 0 or sizes.positions % VECTOR:
        return f"takes positions in multiples of {VECTOR}, found {sizes.positions}"
    return None
