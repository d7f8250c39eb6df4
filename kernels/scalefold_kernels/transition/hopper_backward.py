"""Launches of the backward's kernels for Hopper GPUs (H100, H200)."""

from __future__ import annotations

from functools import partial

import torch
import triton
from torch import Tensor

from scalefold_kernels.norm.op import EPS
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import tile
from scalefold_kernels.transition.arguments import Parameters, shape_class
from scalefold_kernels.transition.hopper.hidden import hidden_kernel
from scalefold_kernels.transition.hopper.input import input_gradient_kernel
from scalefold_kernels.transition.hopper.weights import weight_gradients_kernel
from scalefold_kernels.transition.hopper_tiles import (
    GROUP_ROWS,
    multiprocessors,
    programs,
    reachable,
    tiles_of,
    width_of,
)
from scalefold_kernels.transition.kernel import transition_finish_kernel

_DEPTH = 64
"""Of the pieces in which long products are made: `hopper.parts.DEPTH`."""


def backward(grad_RC: Tensor, x_RC: Tensor, parameters: Parameters) -> list[Tensor]:
    """Gradients of x; of the norm's weight and bias as (2, C); of the four others in order."""
    if not reachable(grad_RC):
        grad_RC = grad_RC.contiguous()
    hidden, grad_hidden, x_hat, rstd, grad_sums = hidden_again(grad_RC, x_RC, parameters)
    grad_x = input_gradient(grad_hidden, x_hat, rstd, grad_RC, parameters)
    parts, sums = weight_gradients(grad_hidden, x_hat, hidden, grad_RC)
    grad_norm, grad_up, grad_up_bias, grad_down = finish(parts, sums, parameters)
    grad_down_bias = sum_rows(grad_sums, x_RC.dtype)
    return [grad_x, grad_norm, grad_up, grad_up_bias, grad_down, grad_down_bias]


def hidden_again(
    grad_RC: Tensor, x_RC: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden channels, their gradient, normalised rows, 1 / standard deviation, sums of grad."""
    norm_weight, norm_bias, up, up_bias, down, _ = parameters
    (num_rows, channels), num_hidden = x_RC.shape, up.shape[0]
    sizes = tile("transition_hidden_hopper", "sm_90", shape_class(x_RC, num_hidden))
    width, block = width_of(channels), sizes["BLOCK_H"]
    num_tiles = triton.cdiv(num_rows, 2 * GROUP_ROWS)
    hidden, grad_hidden = (x_RC.new_empty(num_rows, num_hidden) for _ in range(2))
    x_hat = x_RC.new_empty(num_rows, channels)
    rstd = torch.empty(num_rows, dtype=torch.float32, device=x_RC.device)
    sums = torch.empty(2 * num_tiles, channels, dtype=torch.float32, device=x_RC.device)
    hidden_kernel[(programs(num_tiles, x_RC.device),)](
        tiles_of(x_RC, GROUP_ROWS, width),
        tiles_of(grad_RC, GROUP_ROWS, width),
        tiles_of(up, block, _DEPTH),
        tiles_of(down, _DEPTH, block),
        tiles_of(hidden, GROUP_ROWS, block),
        tiles_of(grad_hidden, GROUP_ROWS, block),
        tiles_of(x_hat, GROUP_ROWS, block),
        norm_weight,
        norm_bias,
        up_bias,
        rstd,
        sums,
        num_tiles,
        num_rows,
        C=channels,
        H=num_hidden,
        EPS=EPS,
        BLOCK_C=width,
        **sizes,
    )
    return hidden, grad_hidden, x_hat, rstd, sums


def input_gradient(
    grad_hidden_RH: Tensor,
    x_hat_RC: Tensor,
    rstd_R: Tensor,
    grad_RC: Tensor,
    parameters: Parameters,
) -> Tensor:
    """Gradient of x, the residual's included."""
    (num_rows, channels), num_hidden = grad_RC.shape, grad_hidden_RH.shape[1]
    sizes = tile("transition_input_hopper", "sm_90", shape_class(grad_RC, num_hidden))
    width = width_of(channels)
    num_tiles = triton.cdiv(num_rows, 2 * GROUP_ROWS)
    grad_x = torch.empty_like(x_hat_RC)
    input_gradient_kernel[(programs(num_tiles, grad_RC.device),)](
        tiles_of(grad_hidden_RH, GROUP_ROWS, _DEPTH),
        tiles_of(parameters.up_weight, _DEPTH, width),
        tiles_of(x_hat_RC, GROUP_ROWS, width),
        tiles_of(grad_RC, GROUP_ROWS, width),
        tiles_of(grad_x, GROUP_ROWS, width),
        parameters.norm_weight,
        rstd_R,
        num_tiles,
        num_rows,
        C=channels,
        H=num_hidden,
        BLOCK_C=width,
        **sizes,
    )
    return grad_x


def weight_gradients(
    grad_hidden_RH: Tensor, x_hat_RC: Tensor, hidden_RH: Tensor, grad_RC: Tensor
) -> tuple[Tensor, Tensor]:
    """Partial sums over rows, float32.

    Returns
    -------
    products : Tensor, shape (2, parts, H, C)
        ``grad_hidden^T x_hat`` and ``hidden^T grad``.
    sums : Tensor, shape (parts, H)
        Of ``grad_hidden``.
    """
    (num_rows, channels), num_hidden = grad_RC.shape, grad_hidden_RH.shape[1]
    sizes = tile("transition_weights_hopper", "sm_90", shape_class(grad_RC, num_hidden))
    width = width_of(channels)
    blocks = triton.cdiv(num_hidden, 2 * GROUP_ROWS)
    # As many parts as fill the GPU once.
    wanted = max(1, multiprocessors(grad_RC.device) // (2 * blocks))
    rows_per_part = _DEPTH * triton.cdiv(triton.cdiv(num_rows, wanted), _DEPTH)
    parts = triton.cdiv(num_rows, rows_per_part)
    new = partial(torch.empty, dtype=torch.float32, device=grad_RC.device)
    products, sums = new(2, parts, num_hidden, channels), new(parts, num_hidden)
    weight_gradients_kernel[(blocks, parts, 2)](
        tiles_of(grad_hidden_RH, _DEPTH, GROUP_ROWS),
        tiles_of(x_hat_RC, _DEPTH, width),
        tiles_of(hidden_RH, _DEPTH, GROUP_ROWS),
        tiles_of(grad_RC, _DEPTH, width),
        products,
        sums,
        num_rows,
        rows_per_part,
        C=channels,
        H=num_hidden,
        BLOCK_C=width,
        **sizes,
    )
    return products, sums


def finish(
    products: Tensor, sums: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the norm (2, C), ``up``, its bias, and ``down`` from partial sums over rows."""
    norm_weight, norm_bias, up, *_ = parameters
    num_hidden, channels = up.shape
    sizes = tile("transition_finish", "sm_90", {"C": channels, "H": num_hidden})
    grad_up, grad_down = torch.empty_like(up), up.new_empty(channels, num_hidden)
    grad_up_bias = up.new_empty(num_hidden)
    blocks = triton.cdiv(num_hidden, sizes["BLOCK_H"])
    norm_sums = torch.empty(blocks, 2 * channels, dtype=torch.float32, device=up.device)
    transition_finish_kernel[(blocks, triton.cdiv(channels, sizes["BLOCK_C"]))](
        products,
        sums,
        up,
        norm_weight,
        norm_bias,
        grad_up,
        grad_down,
        grad_up_bias,
        norm_sums,
        sums.shape[0],
        C=channels,
        H=num_hidden,
        **sizes,
    )
    grad_norm = sum_rows(norm_sums, up.dtype).view(2, channels)
    return grad_norm, grad_up, grad_up_bias, grad_down
