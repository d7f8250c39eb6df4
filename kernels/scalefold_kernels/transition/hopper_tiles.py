"""What both directions' launches on Hopper GPUs share."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

GROUP_ROWS = 64
"""Rows of a warp group; a program has two groups: `hopper.ROWS`."""

_VECTOR = 8
"""bfloat16 elements in the 16 bytes at whose multiples the copy engine's rows start."""


def width_of(channels: int) -> int:
    """Channels in shared memory; those beyond the tensor's are zeros."""
    return max(64, triton.next_power_of_2(channels))


def tiles_of(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A matrix as the copy engine sees it."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
    return TensorDescriptor(x, [*x.shape], [*x.stride()], [rows, columns], layout)


def is_whole(*sizes: int) -> bool:
    """Whether contiguous rows of these sizes are what the copy engine can read."""
    return all(size % _VECTOR == 0 for size in sizes)


def reachable(x: Tensor) -> bool:
    """Whether the copy engine can read a matrix: contiguous at the end, 16-byte steps."""
    return x.stride(1) == 1 and x.stride(0) % _VECTOR == 0 and x.data_ptr() % (2 * _VECTOR) == 0


def programs(num_tiles: int, device: torch.device) -> int:
    """One on each multiprocessor, with every so many-th tile."""
    return min(num_tiles, multiprocessors(device))


@cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count
