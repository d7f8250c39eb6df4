"""Launch of the backward kernel of wide rows for Hopper GPUs (H100, H200), and what it serves."""

from __future__ import annotations

from typing import Literal

import torch
import triton
from torch import Tensor

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.norm.op import shape
from scalefold_kernels.norm.projection import hopper_launch
from scalefold_kernels.norm.projection.arguments import (
    MAX_NARROW_OUTPUTS,
    Gradients,
    Norm,
    Projections,
)
from scalefold_kernels.norm.projection.hopper.backward_wide import projection_backward_wide_kernel
from scalefold_kernels.rows import rows_of
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import VECTOR, num_ctas, reachable, tiles_of, within_reach

CHANNELS = 256
"""Of the rows; the kernel's layouts and registers are made for as many."""


def serves(x: Tensor, projections: Projections, direction: Literal["forward", "backward"]) -> bool:
    """Whether the kernel, on a Hopper GPU, can take the arguments: backward only."""
    sizes, rows = projections.sizes, rows_of(x)
    return (
        direction == "backward"
        and x.dtype == torch.bfloat16
        and sizes.channels == CHANNELS
        and sizes.few == 0
        and sizes.outputs > MAX_NARROW_OUTPUTS
        and sizes.outputs % VECTOR == 0
        and sizes.first_biased % VECTOR == 0
        and sizes.outputs - sizes.first_biased <= CHANNELS
        and rows.num_rows > 1
        and rows.num_dims == 1
        and reachable(hopper_launch.matrix(rows))
        and reachable(projections.weight)
    )


def backward(
    grad: Tensor | None,
    grad_few: Tensor | None,
    x: Tensor,
    norm: Norm,
    projections: Projections,
    through: Tensor | None,
    gradients: Gradients,
) -> Tensor:
    """Gradient of x; fills ``gradients``."""
    assert grad is not None
    assert grad_few is None
    rows, sizes = rows_of(x), projections.sizes
    tiles = tile("projection_backward_wide", "sm_90", shape(rows, P=sizes.outputs))
    depth, piece = tiles.pop("DEPTH"), tiles.pop("PIECE")
    num_tiles = triton.cdiv(rows.num_rows, 2 * ROWS.value)
    programs = num_ctas(num_tiles, x.device)
    x_rows, grad_rows = hopper_launch.matrix(rows), within_reach(grad.reshape(-1, sizes.outputs))
    through_rows = x_rows if through is None else within_reach(through.view(-1, sizes.channels))
    biased = sizes.outputs - sizes.first_biased
    biased_rows = grad_rows[:, sizes.first_biased :] if biased else x_rows
    grad_x, normed = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    sums = torch.empty(programs, sizes.sums, dtype=torch.float32, device=x.device)
    projection_backward_wide_kernel[(programs,)](
        tiles_of(grad_rows, 2 * ROWS.value, depth),
        tiles_of(projections.scaled_weight(), depth, sizes.channels),
        *(tiles_of(t, piece, sizes.channels) for t in (x_rows, through_rows, biased_rows)),
        normed,
        grad_x,
        norm.weight,
        norm.bias,
        norm.stats,
        sums,
        rows.num_rows,
        num_tiles,
        C=sizes.channels,
        P=sizes.outputs,
        BIASED=biased,
        HAS_THROUGH=through is not None,
        **tiles,
    )
    hopper_launch.finish(sums, grad_rows, normed.view(-1, sizes.channels), projections, gradients)
    return grad_x
