"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve."""

from __future__ import annotations

from typing import Literal

import torch
import triton
from torch import Tensor

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.ops.norm.op import EPS, shape
from scalefold_kernels.ops.norm.projection.arguments import (
    MAX_FEW_OUTPUTS,
    MAX_NARROW_OUTPUTS,
    Gradients,
    Norm,
    Projections,
    Sizes,
)
from scalefold_kernels.ops.norm.projection.hopper.backward import projection_backward_hopper_kernel
from scalefold_kernels.ops.norm.projection.hopper.forward import projection_forward_hopper_kernel
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import (
    VECTOR,
    num_ctas,
    padded,
    reachable,
    tiles_of,
    within_reach,
)

MAX_CHANNELS = {"forward": 256, "backward": 128}
"""Rows lie on the chip; backward, their gradient lies in a warp group's registers besides."""

MIN_CHANNELS = 33
"""Backward: they are the rows, 64 at least, of products that sum over rows."""

MAX_BIASED_OUTPUTS = 512
"""Backward: their sums lie in a warp group's registers."""


def serves(x: Tensor, projections: Projections, direction: Literal["forward", "backward"]) -> bool:
    """Whether the kernel of this direction, on a Hopper GPU, can take the arguments."""
    sizes, rows = projections.sizes, rows_of(x)
    weights = (projections.weight, projections.few)
    return (
        x.dtype == torch.bfloat16
        and rows.num_rows > 1
        and rows.num_dims == 1
        and sizes.channels <= MAX_CHANNELS[direction]
        and sizes.channels % VECTOR == 0
        and sizes.outputs % VECTOR == 0
        and sizes.outputs > MAX_NARROW_OUTPUTS
        and (direction == "forward" or _summable(sizes))
        and reachable(matrix(rows))
        and all(reachable(weight) for weight in weights if weight is not None)
    )


def forward(x: Tensor, norm: Norm, projections: Projections, out: Tensor, few: Tensor) -> None:
    """Fill ``out``, ``few`` and the statistics."""
    rows, sizes, weight = rows_of(x), projections.sizes, projections.weight
    tiles = tile("projection_forward_hopper", "sm_90", shape(rows, P=sizes.outputs, S=sizes.few))
    width, block = padded(sizes.channels), tiles["BLOCK_P"]
    num_tiles = triton.cdiv(rows.num_rows, 2 * ROWS.value)
    few_weight = weight if projections.few is None else projections.few
    bias = projections.scaled_bias()
    projection_forward_hopper_kernel[(num_ctas(num_tiles, x.device),)](
        tiles_of(matrix(rows), ROWS.value, width),
        tiles_of(weight, block, width),
        tiles_of(few_weight, few_block(sizes.few), width),
        tiles_of(out.view(-1, sizes.outputs), ROWS.value, block),
        norm.weight,
        norm.bias,
        norm.weight if bias is None else bias,
        projections.first_scale,
        projections.few_scale,
        few,
        norm.stats,
        sizes.first_biased,
        rows.num_rows,
        rows.num_rows // x.shape[0],
        num_tiles,
        C=sizes.channels,
        P=sizes.outputs,
        S=sizes.few,
        SCALED=0 if projections.first_scale == 1 else projections.first,
        EPS=EPS,
        BLOCK_C=width,
        BLOCK_S=few_block(sizes.few),
        HAS_BIAS=bias is not None,
        HAS_ASIDE=sizes.few > 0,
        **tiles,
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
    rows, sizes, weight = rows_of(x), projections.sizes, projections.weight
    tiles = tile("projection_backward_hopper", "sm_90", shape(rows, P=sizes.outputs, S=sizes.few))
    width, block = padded(sizes.channels), tiles["BLOCK_P"]
    num_tiles = triton.cdiv(rows.num_rows, 2 * ROWS.value)
    programs = num_ctas(num_tiles, x.device)
    x_rows = matrix(rows)
    grad_rows = within_reach(grad.reshape(-1, sizes.outputs))
    grad_x, normed = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    normed_rows, grad_x_rows = (t.view(-1, sizes.channels) for t in (normed, grad_x))
    through_rows = (
        grad_x_rows if through is None else within_reach(through.view(-1, sizes.channels))
    )
    few_rows = grad_rows if grad_few is None else matrix(_one_stride(grad_few))
    num_sums = sizes.sums + sizes.few * sizes.channels
    sums = torch.empty(2 * programs, num_sums, dtype=torch.float32, device=x.device)
    few_weight = weight if projections.few is None else projections.few
    scaled = projections.scaled_blocks(block)
    projection_backward_hopper_kernel[(programs,)](
        tiles_of(grad_rows, ROWS.value, block),
        tiles_of(weight if scaled else projections.scaled_weight(), block, width),
        tiles_of(few_weight, MAX_FEW_OUTPUTS, width),
        tiles_of(x_rows, ROWS.value, width),
        tiles_of(through_rows, ROWS.value, width),
        tiles_of(normed_rows, ROWS.value, width),
        tiles_of(grad_x_rows, ROWS.value, width),
        norm.weight,
        norm.bias,
        norm.stats,
        sums,
        projections.first_scale,
        projections.few_scale,
        few_rows,
        *few_rows.stride(),
        rows.num_rows,
        num_tiles,
        C=sizes.channels,
        P=sizes.outputs,
        S=sizes.few,
        SCALED=scaled,
        FIRST_BIASED=sizes.first_biased,
        BLOCK_C=width,
        BLOCK_S=MAX_FEW_OUTPUTS,
        HAS_THROUGH=through is not None,
        HAS_ASIDE=sizes.few > 0,
        **tiles,
    )
    finish(sums, grad_rows, normed_rows, projections, gradients)
    return grad_x


def finish(
    sums: Tensor,
    grad_rows: Tensor,
    normed_rows: Tensor,
    projections: Projections,
    gradients: Gradients,
) -> None:
    """Fill ``gradients``: the programs' sums, added up, which come first; and the weights'."""
    sum_rows(sums, grad_rows.dtype, gradients.vector[: sums.shape[1]])
    torch.mm(grad_rows.t(), normed_rows, out=gradients.weight)
    gradients.scale_first(projections)


def few_block(few: int) -> int:
    """Outputs aside of a product: 8 or, at most, 16."""
    return 8 if few <= 8 else MAX_FEW_OUTPUTS


def _summable(sizes: Sizes) -> bool:
    """Whether backward's sums over rows can be products, and fit."""
    biased = sizes.outputs - sizes.first_biased
    return sizes.channels >= MIN_CHANNELS and biased <= MAX_BIASED_OUTPUTS


def matrix(rows: Rows) -> Tensor:
    """Rows with one stride as a matrix."""
    x = rows.tensor
    return x.as_strided((rows.num_rows, x.shape[-1]), (rows.strides[2], x.stride(-1)))


def _one_stride(x: Tensor) -> Rows:
    """Rows with one stride, copied where they have more."""
    rows = rows_of(x)
    return rows if rows.num_dims == 1 else rows_of(x.contiguous())
