"""Launch of the kernel of few outputs for Hopper GPUs (H100, H200), and what it serves."""

from __future__ import annotations

from typing import Literal

import torch
import triton
from torch import Tensor

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.norm.projection.arguments import MAX_FUSED_CHANNELS, Norm, Projections
from scalefold_kernels.norm.projection.hopper.few import projection_forward_few_kernel
from scalefold_kernels.norm.projection.hopper_launch import few_block, matrix
from scalefold_kernels.rows import rows_of
from scalefold_kernels.tma import padded


def serves(x: Tensor, projections: Projections, direction: Literal["forward", "backward"]) -> bool:
    """Whether a kernel of this direction, on a Hopper GPU, can take them: forward only."""
    sizes = projections.sizes
    return (
        direction == "forward"
        and x.dtype == torch.bfloat16
        and sizes.outputs == 0
        and sizes.channels <= MAX_FUSED_CHANNELS
        and rows_of(x).num_dims == 1
        and x.stride(-1) == 1
    )


def forward(x: Tensor, norm: Norm, projections: Projections, out: Tensor, few: Tensor) -> None:
    """Fill ``few`` and the statistics; ``out`` is empty."""
    sizes, rows = projections.sizes, matrix(rows_of(x))
    projection_forward_few_kernel[(triton.cdiv(len(rows), ROWS.value),)](
        rows,
        rows.stride(0),
        norm.weight,
        norm.bias,
        projections.few,
        projections.few_scale,
        few,
        norm.stats,
        len(rows),
        len(rows) // x.shape[0],
        C=sizes.channels,
        S=sizes.few,
        EPS=EPS,
        BLOCK_C=max(32, padded(sizes.channels)),
        BLOCK_S=few_block(sizes.few),
        num_warps=4,
    )
