"""Launches for any GPU from compute capability 8.0 and any type.

Forward never writes the hidden channels. Backward does, for some rows at a time: they and their
gradient come out of one kernel, and three large matrix products and a LayerNorm's backward follow.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.ops.norm.op import EPS
from scalefold_kernels.ops.transition.arguments import Kept, Parameters, shape_class
from scalefold_kernels.ops.transition.kernel import (
    transition_forward_kernel,
    transition_hidden_kernel,
)
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import architecture, tile

MAX_HIDDEN_ELEMENTS = 1 << 27
"""Of the hidden channels in memory at a time: 256 MiB in bfloat16, and as much for the gradient."""

MAX_ROWS = 1 << 21
"""At a time: a launch takes 65,535 blocks of them, of 64 rows or more."""


def forward(x_RC: Tensor, parameters: Parameters, out_RC: Tensor, kept: Kept | None) -> None:
    """Fill ``out``, and what is kept for backward."""
    num_rows, channels = x_RC.shape
    num_hidden = parameters.up_weight.shape[0]
    sizes = tile("transition_forward", architecture(x_RC.device), shape_class(x_RC, num_hidden))
    transition_forward_kernel[(triton.cdiv(num_rows, sizes["BLOCK_R"]),)](
        x_RC,
        *parameters,
        out_RC,
        *(kept or (None, None)),
        num_rows,
        x_RC.stride(0),
        C=channels,
        H=num_hidden,
        EPS=EPS,
        PRECISION=precision(x_RC.dtype),
        BLOCK_C=block(channels),
        **sizes,
    )


def backward(grad_RC: Tensor, x_RC: Tensor, kept: Kept, parameters: Parameters) -> list[Tensor]:
    """Gradients of x; of the norm's weight and bias as (2, C); of the four others in order."""
    norm_weight, _, up, up_bias, down, _ = parameters
    num_rows, num_hidden = x_RC.shape[0], up.shape[0]
    normed, stats = kept
    grad_normed = torch.empty_like(normed)
    sums: list[tuple[Tensor, ...]] = []
    at_once = min(MAX_ROWS, max(1, MAX_HIDDEN_ELEMENTS // num_hidden))
    for start in range(0, max(num_rows, 1), at_once):
        chunk = slice(start, start + at_once)
        hidden, grad_hidden, grad_up_bias, grad_down_bias = _hidden(
            normed[chunk], grad_RC[chunk], up, up_bias, down
        )
        torch.mm(grad_hidden, up, out=grad_normed[chunk])
        grad_up = torch.mm(grad_hidden.t(), normed[chunk])
        grad_down = torch.mm(grad_RC[chunk].t(), hidden)
        sums.append((grad_up, grad_up_bias, grad_down, grad_down_bias))
    grad_x, grad_norm = torch.ops.scalefold.layer_norm_backward(
        grad_normed, x_RC, norm_weight, stats, grad_RC
    )
    grads = [_total(parts).to(x_RC.dtype) for parts in zip(*sums, strict=True)]
    return [grad_x, grad_norm, *grads]


def _hidden(
    normed: Tensor, grad: Tensor, up: Tensor, up_bias: Tensor, down: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden channels of some rows, their gradient, and both biases' gradients in float32."""
    num_rows, channels = normed.shape
    num_hidden = up.shape[0]
    shape = shape_class(normed, num_hidden)
    sizes = tile("transition_hidden", architecture(normed.device), shape)
    hidden = normed.new_empty(num_rows, num_hidden)
    grad_hidden = torch.empty_like(hidden)
    blocks = triton.cdiv(num_rows, sizes["BLOCK_R"])
    up_bias_sums = torch.empty(blocks, num_hidden, dtype=torch.float32, device=normed.device)
    down_bias_sums = torch.empty(blocks, channels, dtype=torch.float32, device=normed.device)
    transition_hidden_kernel[(triton.cdiv(num_hidden, sizes["BLOCK_H"]), blocks)](
        normed,
        up,
        up_bias,
        grad,
        down,
        hidden,
        grad_hidden,
        up_bias_sums,
        down_bias_sums,
        num_rows,
        grad.stride(0),
        C=channels,
        H=num_hidden,
        PRECISION=precision(normed.dtype),
        **sizes,
    )
    grad_up_bias = sum_rows(up_bias_sums, torch.float32)
    return hidden, grad_hidden, grad_up_bias, sum_rows(down_bias_sums, torch.float32)


def _total(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack([p.float() for p in parts]).sum(0)
