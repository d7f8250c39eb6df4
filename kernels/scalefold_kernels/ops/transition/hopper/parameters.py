"""Last kernel of the backward: gradients of all parameters from parts of sums over rows.

It is in Triton. Legend: C channels, H hidden channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.ops.transition.op import Parameters
from scalefold_kernels.tiles import config_for


@triton.jit
def sum_parts(ptr, num_parts, columns, WIDTH: tl.constexpr, BLOCK_PARTS: tl.constexpr):
    """Sum of (parts, WIDTH) over its rows, of some columns."""
    total = tl.zeros((BLOCK_PARTS, columns.shape[0]), tl.float32)
    for first in range(0, num_parts, BLOCK_PARTS):
        parts = first + tl.arange(0, BLOCK_PARTS)
        inside = (parts < num_parts)[:, None] & (columns < WIDTH)[None, :]
        total += tl.load(ptr + parts[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def finish_weights(
    products_ptr, sums_ptr, grad_up_ptr, grad_up_bias_ptr, grad_down_ptr, h, c, num_parts,
    C: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """A block of both weights' gradients, and of the hidden channels' bias's."""
    at = h[:, None] * C + c[None, :]
    inside = (h < H)[:, None] & (c < C)[None, :]
    grad_up = tl.zeros(at.shape, tl.float32)
    grad_down = tl.zeros(at.shape, tl.float32)
    total = tl.zeros(h.shape, tl.float32)
    for part in tl.range(num_parts, loop_unroll_factor=8):
        grad_up += tl.load(products_ptr + part * H * C + at, mask=inside, other=0.0)
        down_at = (num_parts + part) * H * C + at
        grad_down += tl.load(products_ptr + down_at, mask=inside, other=0.0)
        total += tl.load(sums_ptr + part * H + h, mask=h < H, other=0.0)
    tl.store(grad_up_ptr + at, grad_up, mask=inside)
    down_at = c[:, None] * H + h[None, :]
    tl.store(grad_down_ptr + down_at, grad_down.T, mask=(c < C)[:, None] & (h < H)[None, :])
    if tl.program_id(1) == 0:
        tl.store(grad_up_bias_ptr + h, total, mask=h < H)


@triton.jit
def multiply_sums(
    sums_ptr, up_ptr, num_parts, c, C: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr
):
    """``sums up`` of some channels."""
    out = tl.zeros((BLOCK, c.shape[0]), tl.float32)
    for first in range(0, H, BLOCK):
        h = first + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for part in tl.range(num_parts, loop_unroll_factor=8):
            total += tl.load(sums_ptr + part * H + h, mask=h < H, other=0.0)
        inside = (h < H)[:, None] & (c < C)[None, :]
        up = tl.load(up_ptr + h[:, None] * C + c[None, :], mask=inside, other=0.0)
        out += total[:, None] * up.to(tl.float32)
    return tl.sum(out, 0)


@triton.jit
def transition_finish_kernel(
    products_ptr, sums_ptr, weight_sums_ptr, grad_sums_ptr, up_ptr, grad_norm_ptr, grad_up_ptr,
    grad_up_bias_ptr, grad_down_ptr, grad_down_bias_ptr, num_parts, num_row_parts, C: tl.constexpr,
    H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """All parameters' gradients from parts of sums over rows.

    ``products`` (2, parts, H, C), ``sums`` (parts, H), ``weight_sums`` and ``grad_sums`` (other
    parts, C), float32, are of ``grad_hidden^T normed`` and of ``hidden^T grad``, of
    ``grad_hidden``, of the gradient of the norm's weight, and of ``grad``. The gradient of the
    norm's bias is ``sums up``. A CTA has a block of H and C; the last three along H have one
    each of the gradients with channels only.
    """
    BLOCKS: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    block = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    if block < BLOCKS:
        h = block * BLOCK_H + tl.arange(0, BLOCK_H)
        finish_weights(
            products_ptr, sums_ptr, grad_up_ptr, grad_up_bias_ptr, grad_down_ptr, h, c, num_parts,
            C, H,
        )  # fmt: skip
    elif block == BLOCKS:
        total = sum_parts(weight_sums_ptr, num_row_parts, c, C, BLOCK_PARTS)
        tl.store(grad_norm_ptr + c, total, mask=c < C)
    elif block == BLOCKS + 1:
        total = sum_parts(grad_sums_ptr, num_row_parts, c, C, BLOCK_PARTS)
        tl.store(grad_down_bias_ptr + c, total, mask=c < C)
    else:
        total = multiply_sums(sums_ptr, up_ptr, num_parts, c, C, H, BLOCK_PARTS)
        tl.store(grad_norm_ptr + C + c, total, mask=c < C)


def finish(
    products: Tensor, sums: Tensor, sums_over_rows: Tensor, parameters: Parameters
) -> list[Tensor]:
    """Gradients of the norm's weight and bias as (2, C); of the four others in order.

    ``products`` and ``sums`` are from `gradients`, ``sums_over_rows`` from `input_gradient`.
    """
    norm_weight, _, up, up_bias, down, down_bias = parameters
    num_hidden, channels = up.shape
    config = config_for("transition_finish", up, "sm_90", C=channels, H=num_hidden)
    grad_norm = norm_weight.new_empty(2, channels)
    grads = [torch.empty_like(parameter) for parameter in (up, up_bias, down, down_bias)]
    # After the blocks of H, one CTA row for each gradient that has channels only.
    blocks = triton.cdiv(num_hidden, config["BLOCK_H"]) + 3
    transition_finish_kernel[(blocks, triton.cdiv(channels, config["BLOCK_C"]))](
        products, sums, *sums_over_rows, up, grad_norm, *grads, sums.shape[0],
        sums_over_rows.shape[1],
        C=channels, H=num_hidden, **config,
    )  # fmt: skip
    return [grad_norm, *grads]
