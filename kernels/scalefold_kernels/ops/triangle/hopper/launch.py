"""What launches of the kernels for Hopper GPUs share: descriptors for TMA, and numbers of CTAs."""

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.gpu import num_sms
from scalefold_kernels.ops.triangle.arguments import Sizes
from scalefold_kernels.ops.triangle.hopper.parts import GROUPS, TILE
from scalefold_kernels.tma import tiles_of, within_reach

THREADS = 256
"""Of a CTA with one warp group that computes; its loader has a warp group's place."""

SM_REGISTERS = 65536


def num_ctas(sizes: Sizes, x: Tensor) -> int:
    """One for each SM, or fewer where they would have nothing to do."""
    return min(num_sms(x.device), triton.cdiv(sizes.positions, TILE.value * GROUPS.value))


def sharing(sizes: Sizes, x: Tensor, number: int) -> tuple[int, int, int]:
    """CTAs, of which ``number`` share an SM; tiles; registers of a thread."""
    num_tiles = triton.cdiv(sizes.positions, TILE.value)
    registers = SM_REGISTERS // (number * THREADS) // 8 * 8
    return min(number * num_sms(x.device), num_tiles), num_tiles, registers


def row_tiles(x: Tensor, width: int | None = None) -> TensorDescriptor:
    """Tiles (positions, channels) of a contiguous tensor, channels last."""
    channels = x.shape[-1]
    return tiles_of(within_reach(x.view(-1, channels)), TILE.value, width or channels)


def column_tiles(x: Tensor, height: int) -> TensorDescriptor:
    """Tiles (channels, positions) of a contiguous tensor, positions last."""
    return tiles_of(within_reach(x.view(x.shape[0], -1)), height, TILE.value)


def weight_tiles(weight: Tensor) -> TensorDescriptor:
    """Rows of a weight, 64 at a time."""
    return tiles_of(within_reach(weight), 64, weight.shape[1])
