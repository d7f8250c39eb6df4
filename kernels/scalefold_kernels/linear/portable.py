"""Launches of the kernels for any GPU, and of the library's matrix products."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.dot import block, precision
from scalefold_kernels.dropout.op import dropped, residual_dropout
from scalefold_kernels.linear.arguments import Update
from scalefold_kernels.linear.kernel import (
    residual_linear_backward_kernel,
    residual_linear_forward_kernel,
)
from scalefold_kernels.sums import column_sums, sum_rows
from scalefold_kernels.tiles import architecture, tile

MAX_FUSED_CHANNELS = 256
"""Inputs or outputs: above, weights do not fit on the chip beside the rows."""

MAX_FUSED_GRADIENT = 128 * 128
"""Elements of a weight: above, its gradient does not fit in a program's registers."""


def forward(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, update: Update) -> Tensor:
    """The sum of ``x`` and the update; all tensors are contiguous."""
    if not _fused(weight):
        added = functional.linear(h, weight, bias)
        if update.dropout is None:
            return added.add_(x)
        return residual_dropout(x, added, *update.dropout)
    out = torch.empty_like(x)
    sizes = tile("residual_linear_forward", architecture(update.device), update.shape)
    sizes["BLOCK_C"] = min(sizes["BLOCK_C"], block(update.channels))
    grid = _grid(update, sizes)
    residual_linear_forward_kernel[(*grid, triton.cdiv(update.channels, sizes["BLOCK_C"]))](
        x,
        h,
        weight,
        bias,
        out,
        *_arguments(update),
        BLOCK_K=block(update.inputs),
        **_constants(update, weight),
        **sizes,
    )
    return out


def backward(
    grad: Tensor, h: Tensor, weight: Tensor, update: Update, grad_h: Tensor, parameters: Tensor
) -> None:
    """Fill the gradient of ``h`` and those of weight and bias as one vector; all contiguous."""
    channels, inputs = weight.shape
    if not _fused(weight) or weight.numel() > MAX_FUSED_GRADIENT:
        grad = grad if update.dropout is None else dropped(grad, *update.dropout)
        grad, end = grad.view(-1, channels), weight.numel()
        torch.mm(grad, weight, out=grad_h.view(-1, inputs))
        torch.mm(grad.t(), h.view(-1, inputs), out=parameters[:end].view_as(weight))
        column_sums(grad, parameters[end:])
        return
    sizes = tile("residual_linear_backward", architecture(update.device), update.shape)
    sizes["BLOCK_K"] = min(sizes["BLOCK_K"], block(inputs))
    grid = _grid(update, sizes)
    partial = parameters.new_empty(grid[0] * grid[1], parameters.numel(), dtype=torch.float32)
    residual_linear_backward_kernel[(*grid, triton.cdiv(inputs, sizes["BLOCK_K"]))](
        grad,
        h,
        weight,
        grad_h,
        partial,
        *_arguments(update),
        BLOCK_C=block(channels),
        **_constants(update, weight),
        **sizes,
    )
    sum_rows(partial, parameters.dtype, parameters)


def _grid(update: Update, sizes: dict[str, int]) -> tuple[int, int]:
    """Blocks of positions, and groups of lines; takes PROGRAMS out of ``sizes``."""
    blocks = update.batch * triton.cdiv(update.size2, sizes["BLOCK_R"])
    return blocks, max(1, min(update.size1, sizes.pop("PROGRAMS") // blocks))


def _arguments(update: Update) -> tuple[Any, ...]:
    """From ``key_ptr`` to ``key_stride``."""
    return *update.hashing, update.size1, update.size2, update.key_stride


def _constants(update: Update, weight: Tensor) -> dict[str, int | str]:
    return {
        "K": update.inputs,
        "C": update.channels,
        "DIMS": update.dims,
        "SHARED": update.shared,
        "PRECISION": precision(weight.dtype),
    }


def _fused(weight: Tensor) -> bool:
    """Whether the kernels here serve. float32 has no fast matrix product in Triton."""
    return max(weight.shape) <= MAX_FUSED_CHANNELS and not (
        weight.is_cuda and weight.dtype == torch.float32
    )
