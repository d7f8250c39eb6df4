"""Launches of the backward's kernels for Hopper GPUs (H100, H200)."""

from __future__ import annotations

from functools import partial

import torch
import triton
from torch import Tensor

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.ops.transition.arguments import Kept, Parameters, shape_class
from scalefold_kernels.ops.transition.hopper.gradients import gradients_kernel
from scalefold_kernels.ops.transition.hopper.input import input_gradient_kernel
from scalefold_kernels.ops.transition.hopper.parts import DEPTH, width_of
from scalefold_kernels.ops.transition.kernel import transition_finish_kernel
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import num_ctas, tiles_of, within_reach

_ROWS, _DEPTH = ROWS.value, DEPTH.value


def backward(grad_RC: Tensor, x_RC: Tensor, kept: Kept, parameters: Parameters) -> list[Tensor]:
    """Gradients of x; of the norm's weight and bias as (2, C); of the four others in order."""
    grad_RC = within_reach(grad_RC)
    grad_hidden, products, sums = gradients(kept.normed, grad_RC, parameters)
    grad_x, row_sums = input_gradient(grad_hidden, x_RC, kept.stats, grad_RC, parameters)
    return [grad_x, *finish(products, sums, row_sums, parameters)]


def gradients(
    normed_RC: Tensor, grad_RC: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    """The hidden channels' gradient, and partial sums over rows, float32.

    Returns
    -------
    grad_hidden : Tensor
        By pieces, see `hopper.parts.piece_row`: those of whole tiles of rows, an even number each.
    products : Tensor, shape (2, parts, H, C)
        ``grad_hidden^T normed`` and ``hidden^T grad``.
    sums : Tensor, shape (parts, H)
        Of ``grad_hidden``.
    """
    (num_rows, channels), num_hidden = grad_RC.shape, parameters.up_weight.shape[0]
    sizes = tile("transition_gradients_hopper", "sm_90", shape_class(grad_RC, num_hidden))
    width, block = width_of(channels), sizes["BLOCK_H"]
    # Whole tiles of the next kernel: zeros beyond the last row, for its sums.
    num_rows = 2 * _ROWS * triton.cdiv(num_rows, 2 * _ROWS)
    num_pieces = num_rows // _ROWS * 2 * triton.cdiv(num_hidden, 2 * _DEPTH)
    grad_hidden = grad_RC.new_empty(num_pieces * _ROWS, _DEPTH)
    # As many parts as fill the GPU once.
    blocks = triton.cdiv(num_hidden, block)
    wanted = max(1, num_sms(grad_RC.device) // blocks)
    rows_per_part = _ROWS * triton.cdiv(triton.cdiv(num_rows, wanted), _ROWS)
    parts = triton.cdiv(num_rows, rows_per_part)
    new = partial(torch.empty, dtype=torch.float32, device=grad_RC.device)
    products, sums = new(2, parts, num_hidden, channels), new(parts, num_hidden)
    gradients_kernel[(blocks, parts)](
        tiles_of(normed_RC, _ROWS, width),
        tiles_of(grad_RC, _ROWS, width),
        tiles_of(parameters.up_weight, block, width),
        tiles_of(parameters.down_weight, width, block),
        tiles_of(grad_hidden, _ROWS, _DEPTH),
        parameters.up_bias,
        products,
        sums,
        num_rows,
        rows_per_part,
        C=channels,
        H=num_hidden,
        BLOCK_C=width,
        **sizes,
    )
    return grad_hidden, products, sums


def input_gradient(
    grad_hidden: Tensor, x_RC: Tensor, stats_2R: Tensor, grad_RC: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor]:
    """Gradient of x, the residual's included; parts of sums over rows, (2, parts, C), float32.

    They are of the gradient of the norm's weight and of ``grad``.
    """
    (num_rows, channels), num_hidden = grad_RC.shape, parameters.up_weight.shape[0]
    sizes = tile("transition_input_hopper", "sm_90", shape_class(grad_RC, num_hidden))
    width = width_of(channels)
    num_tiles = triton.cdiv(num_rows, 2 * _ROWS)
    programs = num_ctas(num_tiles, grad_RC.device)
    grad_x = x_RC.new_empty(num_rows, channels)
    sums = torch.empty(2, 2 * programs, channels, dtype=torch.float32, device=grad_RC.device)
    input_gradient_kernel[(programs,)](
        tiles_of(grad_hidden, _ROWS, _DEPTH),
        tiles_of(parameters.up_weight, _DEPTH, width),
        tiles_of(x_RC, _ROWS, width),
        tiles_of(grad_RC, _ROWS, width),
        tiles_of(grad_x, _ROWS, width),
        parameters.norm_weight,
        stats_2R,
        sums,
        num_tiles,
        num_rows,
        C=channels,
        H=num_hidden,
        BLOCK_C=width,
        **sizes,
    )
    return grad_x, sums


def finish(
    products: Tensor, sums: Tensor, row_sums: Tensor, parameters: Parameters
) -> list[Tensor]:
    """Gradients of the norm's weight and bias as (2, C); of the four others in order."""
    norm_weight, _, up, up_bias, down, down_bias = parameters
    num_hidden, channels = up.shape
    sizes = tile("transition_finish", "sm_90", {"C": channels, "H": num_hidden})
    grad_norm = norm_weight.new_empty(2, channels)
    grads = [torch.empty_like(parameter) for parameter in (up, up_bias, down, down_bias)]
    # Behind the blocks of H, one for each kind of what has channels only.
    blocks = triton.cdiv(num_hidden, sizes["BLOCK_H"]) + 3
    transition_finish_kernel[(blocks, triton.cdiv(channels, sizes["BLOCK_C"]))](
        products,
        sums,
        *row_sums,
        up,
        grad_norm,
        *grads,
        sums.shape[0],
        row_sums.shape[1],
        C=channels,
        H=num_hidden,
        **sizes,
    )
    return [grad_norm, *grads]
