"""Tensors as TMA reads and writes them."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.ops.attention.arguments import in_memory, transposed
from scalefold_kernels.tma import VECTOR, padded, reachable, steps


def bias_rows(bias: Tensor) -> Tensor:
    """The bias as TMA reads it: keys or queries contiguous, in 16-byte steps."""
    rows = in_memory(bias)
    if reachable(rows):
        return bias
    *others, columns = rows.shape
    copy = rows.new_empty((*others, -(-columns // VECTOR) * VECTOR))[..., :columns]
    copy.copy_(rows)
    return copy.mT if transposed(bias) else copy


def gradient_rows(grad_out: Tensor) -> Tensor:
    """The gradient of the output as TMA reads it, heads one after the other."""
    dense = reachable(grad_out) and grad_out.stride(3) == grad_out.shape[4]
    return grad_out if dense else grad_out.clone(memory_format=torch.contiguous_format)


def rows_descriptor(x: Tensor, block: int) -> TensorDescriptor:
    """Tiles (block positions, channels) of a tensor (B, R, N, H, C); zeros beyond its ends."""
    width = padded(x.shape[-1])
    layout = gl.NVMMASharedLayout(2 * width, 16, 5)
    return TensorDescriptor(x, [*x.shape], steps(x), [1, 1, block, 1, width], layout)


def bias_descriptor(
    bias: Tensor | None, stand_in: Tensor, block_q: int, block_k: int
) -> TensorDescriptor:
    """Tiles of a bias (B, H, Q, K), in the order of its memory."""
    x, rows, columns = stand_in[:, 0] if bias is None else bias, block_q, block_k
    if transposed(bias):
        x, rows, columns = x.mT, block_k, block_q
    layout = gl.NVMMASharedLayout(min(128, 2 * columns), 16, 4)
    return TensorDescriptor(x, [*x.shape], steps(x), [1, 1, rows, columns], layout)


def statistics_descriptor(x: Tensor, block: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(0, 32, 4)
    return TensorDescriptor(x, [*x.shape], steps(x), [1, 1, 1, block], layout)
