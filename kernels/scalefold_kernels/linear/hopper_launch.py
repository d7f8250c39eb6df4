"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.linear.arguments import Update
from scalefold_kernels.linear.hopper.backward import residual_linear_backward_hopper_kernel
from scalefold_kernels.linear.hopper.forward import residual_linear_forward_hopper_kernel
from scalefold_kernels.linear.hopper.parts import lines_of
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import VECTOR, padded, reachable, tiles_of

MAX_CHANNELS = 256
"""Forward of the inputs, backward of the outputs: all of a row's lie on the chip."""

MIN_OUTPUTS = 65
"""Backward: a warp group has half of a gradient's rows, and no fewer than 64."""


class Order(NamedTuple):
    """Rows as the kernels go through them: blocks of positions, each in several tiles of lines.

    Attributes
    ----------
    blocks : int
        Of all samples.
    groups : int
        Of tiles, each of one warp group or program.
    sample_blocks : int
    num_tiles : int
        Of a block.
    sample_lines : int
    """

    blocks: int
    groups: int
    sample_blocks: int
    num_tiles: int
    sample_lines: int

    @classmethod
    def of(cls, update: Update, workers: int) -> Order:
        """For so many warp groups or programs, or more of them where there are more blocks."""
        samples, lines, positions = _sizes(update)
        tile_lines = lines_of(update.shared)
        sample_blocks = triton.cdiv(positions, ROWS.value // tile_lines)
        blocks, num_tiles = samples * sample_blocks, triton.cdiv(lines, tile_lines)
        groups = min(num_tiles, max(1, workers // blocks))
        return cls(blocks, groups, sample_blocks, num_tiles, lines)


def _sizes(update: Update) -> tuple[int, int, int]:
    """Samples, their lines, and positions of a line."""
    if update.dropout is None:  # nothing depends on the positions
        return 1, update.rows, 1
    return update.batch, update.size1, update.size2


def _boxes(x: Tensor, update: Update, columns: int) -> TensorDescriptor:
    """Tiles of 64 rows, and of so many columns, of a contiguous tensor."""
    samples, lines, positions = _sizes(update)
    tile_lines = lines_of(update.shared)
    matrix = x.view(samples * lines, positions, x.shape[-1])
    return tiles_of(matrix, tile_lines, ROWS.value // tile_lines, columns)


def serves(update: Update, *matrices: Tensor, direction: Literal["forward", "backward"]) -> bool:
    """Whether the kernel of this direction, on a Hopper GPU, can take the arguments."""
    # A tile's lines are of one sample.
    whole = update.batch == 1 or update.size1 % lines_of(update.shared) == 0
    by_position = update.dims == 3 and update.shared in (1, 2) and whole
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
    order = Order.of(update, 2 * max(1, num_sms(x.device) // columns))
    residual_linear_forward_hopper_kernel[(columns * triton.cdiv(order.blocks * order.groups, 2),)](
        _boxes(x, update, block),
        _boxes(h, update, width),
        tiles_of(weight, block, width),
        _boxes(out, update, block),
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
    order = Order.of(update, max(1, num_sms(grad.device) // columns))
    programs = order.blocks * order.groups
    partial = parameters.new_empty(programs, parameters.numel(), dtype=torch.float32)
    residual_linear_backward_hopper_kernel[(columns * programs,)](
        _boxes(grad, update, width),
        _boxes(h, update, block),
        tiles_of(weight, width, block),
        _boxes(grad_h, update, block // 2),
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
