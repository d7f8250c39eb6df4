"""Layer normalisation with projections on Hopper GPUs (H100, H200), in Gluon."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.normed_projection.arguments import MAX_NARROW_OUTPUTS, Projections
from scalefold_kernels.ops.normed_projection.hopper.backward import backward
from scalefold_kernels.ops.normed_projection.hopper.forward import forward
from scalefold_kernels.rows import rows_of
from scalefold_kernels.tma import VECTOR, why_unreachable

__all__ = ["backward", "forward", "why_not"]

MAX_CHANNELS = {"forward": 256, "backward": 128}
"""Shared memory holds the rows; in backward, a warp group's registers hold their gradient, too."""

MIN_CHANNELS = 33
"""Backward: they are the rows, 64 at least, of products that sum over rows."""

MAX_BIASED_OUTPUTS = 512
"""Backward: a warp group's registers hold their sums."""


def why_not(function: str, x: Tensor, projections: Projections) -> str | None:
    channels, outputs, first_biased, _ = projections.sizes
    if x.dtype != torch.bfloat16:
        return f"takes bfloat16, not {x.dtype}"
    rows = rows_of(x)
    if rows.num_rows < 2 or rows.num_dims > 1:
        return f"takes two rows or more with one stride, found {tuple(x.shape)}, {x.stride()}"
    if channels > MAX_CHANNELS[function]:
        return f"takes {MAX_CHANNELS[function]} channels at most, found {channels}"
    if channels % VECTOR or outputs % VECTOR:
        return f"takes channels and outputs in multiples of {VECTOR}, found {channels}, {outputs}"
    if outputs <= MAX_NARROW_OUTPUTS:
        return f"takes more than {MAX_NARROW_OUTPUTS} outputs, found {outputs}"
    if function == "backward" and channels < MIN_CHANNELS:
        return f"takes {MIN_CHANNELS} channels or more, found {channels}"
    if function == "backward" and outputs - first_biased > MAX_BIASED_OUTPUTS:
        return f"takes {MAX_BIASED_OUTPUTS} biases at most, found {outputs - first_biased}"
    return why_unreachable(rows.matrix(), projections.weight, projections.few)
