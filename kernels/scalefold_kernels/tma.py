"""Tensors as TMA reads and writes them, for launches."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.dot import block
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.tiles import dtype_name

STEP_BYTES = 16
"""TMA requires rows to start at multiples of this many bytes."""

VECTOR = STEP_BYTES // 2
"""Elements of bfloat16 in that many bytes."""


def reachable(x: Tensor) -> bool:
    """Whether TMA takes a bfloat16 tensor: it needs rows that start at multiples of 16 bytes.

    The last dimension must be contiguous. No stride may be 0, as in expanded tensors.
    """
    return (
        x.stride(-1) == 1
        and x.data_ptr() % STEP_BYTES == 0
        and all(step > 0 and step % VECTOR == 0 for step in steps(x)[:-1])
    )


def why_unreachable(*tensors: Tensor | None) -> str | None:
    """Why TMA does not take one of these tensors, or None."""
    if all(reachable(x) for x in tensors if x is not None):
        return None
    return f"TMA does not reach a tensor whose rows start between multiples of {STEP_BYTES} bytes"


def steps(x: Tensor) -> list[int]:
    """Strides as descriptors take them; those of dimensions of one element are ignored."""
    step = STEP_BYTES // x.element_size()
    return [s if n > 1 else step for n, s in zip(x.shape[:-1], x.stride()[:-1])] + [1]


def within_reach(x: Tensor) -> Tensor:
    """Return a bfloat16 tensor that TMA takes, see `reachable`: this one, or a copy.

    Even a contiguous tensor may start elsewhere than at such a multiple, as part of a larger one.
    """
    return x if reachable(x) else x.clone(memory_format=torch.contiguous_format)


def tiles_of(x: Tensor, *shape: int) -> TensorDescriptor:
    """Describe tiles of a tensor; beyond its ends TMA reads zeros and writes nothing."""
    layout = gl.NVMMASharedLayout.get_default_for(list(shape), getattr(gl, dtype_name(x.dtype)))
    return TensorDescriptor(x, [*x.shape], steps(x), list(shape), layout)


def padded(channels: int) -> int:
    """Channels in shared memory; those beyond the tensor's are zeros."""
    return block(channels)


def num_ctas(num_tiles: int, device: torch.device) -> int:
    """One CTA per SM; CTA i takes tiles i, i + n, i + 2 n, ... of n CTAs."""
    return min(num_tiles, num_sms(device))
