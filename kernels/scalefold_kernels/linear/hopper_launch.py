"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.copy_engine import VECTOR, multiprocessors, padded, reachable, tiles_of
from scalefold_kernels.hopper import ROWS
from scalefold_kernels.linear.arguments import Update
from scalefold_kernels.linear.hopper.backward import residual_linear_backward_hopper_kernel
from scalefold_kernels.linear.hopper.forward import residual_linear_forward_hopper_kernel
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import tile

MAX_CHANNELS = 256
"""Forward of the inputs, backward of the outputs: all of a row's lie on the chip."""

MIN_OUTPUTS = 65
"""Backward: a warp group has half of a gradient's rows, and no fewer than 64."""


class Order(NamedTuple):
    """Rows as the kernels go through them: blocks of 64 positions, each in several lines.

    Attributes
    ----------
    blocks : int
        Of all samples.
    groups : int
        Of lines, each of one warp group or program.
    sample_blocks : int
    num_lines, line_rows : int
        Of a block, and how far they are apart.
    sample_rows : int
    """

    blocks: int
    groups: int
    sample_blocks: int
    num_lines: int
    line_rows: int
    sample_rows: int

    @classmethod
    def of(cls, update: Update, workers: int) -> Order:
        """For so many warp groups or programs, or more of them where there are more blocks."""
        if update.dropout is None:  # nothing depends on the positions
            lines = triton.cdiv(update.rows, ROWS.value)
            return cls(1, min(workers, lines), 1, lines, ROWS.value, 0)
        sample_blocks = update.size2 // ROWS.value
        blocks, lines = update.batch * sample_blocks, update.size1
        groups = min(lines, max(1, workers // blocks))
        return cls(blocks, groups, sample_blocks, lines, update.size2, lines * update.size2)


def serves(update: Update, *matrices: Tensor, direction: Literal["forward", "backward"]) -> bool:
    """Whether the kernel of this direction, on a Hopper GPU, can take the arguments."""
    by_position = update.dims == 3 and update.shared in (1, 2) and update.size2 % ROWS.value == 0
    channels, inputs = update.channels, update.inputs
    return (
        matrices[0].dtype == torch.bfloat16
        and (update.dropout is None or by_position)
        and channels % VECTOR == 0
        and inputs % VECTOR == 0
        and (inputs if direction == "forward" else channels) <= MAX_CHANNELS
        and (direction == "forward" or channels >= MIN_OUTPUTS)
        and all(reachable(matrix.view(-1, matrix.shape[-1])) for matrix in matrices)
    )


def forward(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, update: Update) -> Tensor:
    """The sum of ``x`` and the update; all tensors are contiguous."""
    out = torch.empty_like(x)
    channels, inputs = weight.shape
    sizes = tile("residual_linear_forward_hopper", "sm_90", update.shape)
    width, block = padded(inputs), min(sizes.pop("BLOCK_C"), padded(channels))
    columns = triton.cdiv(channels, block)
    order = Order.of(update, 2 * max(1, multiprocessors(x.device) // columns))
    residual_linear_forward_hopper_kernel[(columns * triton.cdiv(order.blocks * order.groups, 2),)](
        tiles_of(x.view(-1, channels), ROWS.value, block),
        tiles_of(h.view(-1, inputs), ROWS.value, width),
        tiles_of(weight, block, width),
        tiles_of(out.view(-1, channels), ROWS.value, block),
        bias,
        *update.hashing,
        update.key_stride,
        tuple(order),
        C=channels,
        SHARED=update.shared,
        BLOCK_K=width,
        BLOCK_C=block,
        COLUMN_BLOCKS=columns,
        **sizes,
    )
    return out


def backward(
    grad: Tensor, h: Tensor, weight: Tensor, update: Update, grad_h: Tensor, parameters: Tensor
) -> None:
    """Fill the gradient of ``h`` and those of weight and bias as one vector; all contiguous."""
    channels, inputs = weight.shape
    sizes = tile("residual_linear_backward_hopper", "sm_90", update.shape)
    width, block = padded(channels), sizes["BLOCK_K"]
    columns = triton.cdiv(inputs, block)
    order = Order.of(update, max(1, multiprocessors(grad.device) // columns))
    programs = order.blocks * order.groups
    partial = parameters.new_empty(programs, parameters.numel(), dtype=torch.float32)
    residual_linear_backward_hopper_kernel[(columns * programs,)](
        tiles_of(grad.view(-1, channels), ROWS.value, width),
        tiles_of(h.view(-1, inputs), ROWS.value, block),
        tiles_of(weight, width, block),
        tiles_of(grad_h.view(-1, inputs), ROWS.value, block // 2),
        partial,
        *update.hashing,
        update.key_stride,
        tuple(order),
        C=channels,
        K=inputs,
        SHARED=update.shared,
        BLOCK_C=width,
        COLUMN_BLOCKS=columns,
        **sizes,
    )
    sum_rows(partial, parameters.dtype, parameters)
