"""Tensors as TMA reads and writes them, for launches."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.dot import block
from scalefold_kernels.gpu import num_sms

STEP_BYTES = 16
"""At whose multiples rows start."""

VECTOR = STEP_BYTES // 2
"""Elements of bfloat16 in a step."""


def reachable(x: Tensor) -> bool:
    """Whether it can take a tensor of bfloat16: contiguous at the end, steps of 16 bytes.

    Steps of 0, as expanded tensors have them, it cannot take.
    """
    return (
        x.stride(-1) == 1
        and x.data_ptr() % STEP_BYTES == 0
        and all(step > 0 and step % VECTOR == 0 for step in steps(x)[:-1])
    )


def steps(x: Tensor) -> list[int]:
    """Strides, as descriptors take them; those of a dimension of one element serve for nothing."""
    step = STEP_BYTES // x.element_size()
    return [s if n > 1 else step for n, s in zip(x.shape[:-1], x.stride()[:-1])] + [1]


def within_reach(x: Tensor) -> Tensor:
    """A tensor of bfloat16 that it can take: this one, or a copy.

    Contiguous tensors, too, may begin between multiples of 16 bytes: as parts of larger ones.
    """
    return x if reachable(x) else x.clone(memory_format=torch.contiguous_format)


def tiles_of(x: Tensor, *shape: int) -> TensorDescriptor:
    """Tiles of a tensor of bfloat16; beyond it they are zeros, and nothing is written."""
    layout = gl.NVMMASharedLayout.get_default_for(list(shape), gl.bfloat16)
    return TensorDescriptor(x, [*x.shape], steps(x), list(shape), layout)


def padded(channels: int) -> int:
    """Channels in shared memory; those beyond the tensor's are zeros."""
    return block(channels)


def num_ctas(num_tiles: int, device: torch.device) -> int:
    """One on each SM, with every so many-th tile."""
    return min(num_tiles, num_sms(device))
