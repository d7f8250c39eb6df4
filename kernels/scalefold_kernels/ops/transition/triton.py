"""The transition for any GPU from compute capability 8.0 and any type.

Forward never writes the hidden channels. Backward does, for some rows at a time: they and their
gradient come out of one kernel, and three large matrix products and a LayerNorm's backward follow.

Legend: R rows, C channels, H hidden channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.norm.triton import standardise, store_statistics
from scalefold_kernels.ops.transition.op import Kept, Parameters, config_of
from scalefold_kernels.sums import sum_rows

MAX_HIDDEN_ELEMENTS = 1 << 27
"""Hidden activations in memory at a time: 256 MiB in bfloat16, and as much for the gradient."""

MAX_ROWS = 1 << 21
"""Most rows at a time: a launch takes 65,535 blocks of 64 rows or more."""


@triton.jit
def load_weight(ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FITS: tl.constexpr):
    """A block of a contiguous matrix; 0 outside, where it does not fit in whole blocks."""
    ptrs = ptr + rows[:, None] * COLUMNS + columns[None, :]
    if FITS:
        return tl.load(ptrs)
    else:
        inside = (rows < ROWS)[:, None] & (columns < COLUMNS)[None, :]
        return tl.load(ptrs, mask=inside, other=0.0)


@triton.jit
def transition_forward_kernel(
    x_ptr, norm_weight_ptr, norm_bias_ptr, up_ptr, up_bias_ptr, down_ptr, down_bias_ptr, out_ptr,
    normed_ptr, stats_ptr, num_rows, x_stride,
    C: tl.constexpr, H: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """``x + down(relu(up(norm(x))))`` of a block of rows; hidden channels never leave the chip.

    Unless they are None, ``normed`` (R, C) takes the normalised rows and ``stats`` (2, R) their
    mean and 1 / standard deviation.
    """
    FITS: tl.constexpr = C == BLOCK_C and H % BLOCK_H == 0
    first = tl.program_id(0) * BLOCK_R
    channels = tl.arange(0, BLOCK_C)
    # Offsets in a block are 32 bits wide: 64 would need registers that the products want.
    # Rows beyond the end repeat the last one, and are not written.
    rows = tl.minimum(tl.arange(0, BLOCK_R), num_rows - 1 - first)
    x_ptrs = x_ptr + tl.cast(first, tl.int64) * x_stride + rows[:, None] * x_stride
    inside_c = channels < C
    x = tl.load(x_ptrs + channels[None, :], mask=inside_c[None, :], other=0.0)
    x_hat, mean, rstd = standardise(x.to(tl.float32), inside_c, C, BLOCK_C)
    norm_weight = load_vector(norm_weight_ptr, channels, C)
    norm_bias = load_vector(norm_bias_ptr, channels, C)
    normed = (x_hat * norm_weight[None, :] + norm_bias[None, :]).to(x.dtype)
    at = tl.arange(0, BLOCK_R)[:, None] * C + channels[None, :]
    inside = (tl.arange(0, BLOCK_R) < num_rows - first)[:, None] & inside_c[None, :]
    if normed_ptr is not None:
        tl.store(normed_ptr + tl.cast(first, tl.int64) * C + at, normed, mask=inside)
        store_statistics(stats_ptr, first + tl.arange(0, BLOCK_R), num_rows, mean, rstd)
    bias = load_vector(down_bias_ptr, channels, C)
    out = x.to(tl.float32) + bias[None, :]  # before the loop, where x is at hand
    for start in range(0, H, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        up = load_weight(up_ptr, h, channels, H, C, FITS)
        down = load_weight(down_ptr, channels, h, C, H, FITS)
        hidden = tl.dot(normed, up.T, input_precision=PRECISION)
        hidden += load_vector(up_bias_ptr, h, H)[None, :]
        hidden = tl.maximum(hidden, 0.0).to(x.dtype)
        out = tl.dot(hidden, down.T, out, input_precision=PRECISION)
    # Not the mask from before the loop: that would stay in registers across it, and spill.
    inside = (first + tl.arange(0, BLOCK_R) < num_rows)[:, None] & inside_c[None, :]
    tl.store(out_ptr + tl.cast(first, tl.int64) * C + at, out, mask=inside)


@triton.jit
def transition_hidden_kernel(
    normed_ptr, up_ptr, up_bias_ptr, grad_ptr, down_ptr, hidden_ptr, grad_hidden_ptr,
    up_bias_sums_ptr, down_bias_sums_ptr, num_rows, grad_stride,
    C: tl.constexpr, H: tl.constexpr, PRECISION: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Hidden channels again, their gradient, and this block's sums for the biases' gradients.

    Both products have the same shape and one loop over channels.
    """
    FITS: tl.constexpr = C % BLOCK_C == 0 and H % BLOCK_H == 0
    first_h = tl.program_id(0) * BLOCK_H
    row_block = tl.program_id(1)
    first = row_block * BLOCK_R
    rows, columns = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_H)
    h = first_h + columns
    hidden = tl.zeros((BLOCK_R, BLOCK_H), tl.float32)
    grad_hidden = tl.zeros((BLOCK_R, BLOCK_H), tl.float32)
    row_inside = (rows < num_rows - first)[:, None]
    normed_rows = normed_ptr + tl.cast(first, tl.int64) * C + rows[:, None] * C
    grad_rows = grad_ptr + tl.cast(first, tl.int64) * grad_stride + rows[:, None] * grad_stride
    for start in range(0, C, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        inside = row_inside & (c < C)[None, :]
        normed = tl.load(normed_rows + c[None, :], mask=inside, other=0.0)
        up = load_weight(up_ptr, h, c, H, C, FITS)
        hidden = tl.dot(normed, up.T, hidden, input_precision=PRECISION)
        grad = tl.load(grad_rows + c[None, :], mask=inside, other=0.0)
        down = load_weight(down_ptr, c, h, C, H, FITS)
        grad_hidden = tl.dot(grad, down, grad_hidden, input_precision=PRECISION)
        if first_h == 0:
            sums = tl.sum(grad.to(tl.float32), axis=0)
            tl.store(down_bias_sums_ptr + row_block * C + c, sums, mask=c < C)
    hidden += load_vector(up_bias_ptr, h, H)[None, :]
    grad_hidden = tl.where(hidden > 0.0, grad_hidden, 0.0)
    # Rows beyond the end have gradient 0.
    tl.store(up_bias_sums_ptr + row_block * H + h, tl.sum(grad_hidden, axis=0), mask=h < H)
    offset = tl.cast(first, tl.int64) * H + first_h
    at = rows[:, None] * H + columns[None, :]
    inside = row_inside & (h < H)[None, :]
    tl.store(hidden_ptr + offset + at, tl.maximum(hidden, 0.0), mask=inside)
    tl.store(grad_hidden_ptr + offset + at, grad_hidden, mask=inside)


def forward(x_RC: Tensor, parameters: Parameters, out_RC: Tensor, kept: Kept | None) -> None:
    """Fill ``out``, and what is kept for backward."""
    num_rows, channels = x_RC.shape
    num_hidden = parameters.up_weight.shape[0]
    config = config_of("transition_forward", x_RC, num_hidden)
    transition_forward_kernel[(triton.cdiv(num_rows, config["BLOCK_R"]),)](
        x_RC, *parameters, out_RC, *(kept or (None, None)), num_rows, x_RC.stride(0),
        C=channels, H=num_hidden, PRECISION=precision(x_RC.dtype), BLOCK_C=block(channels),
        **config,
    )  # fmt: skip


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
        rows, grad = normed[chunk], grad_RC[chunk]
        hidden, grad_hidden, grad_up_bias, grad_down_bias = _hidden(rows, grad, up, up_bias, down)
        torch.mm(grad_hidden, up, out=grad_normed[chunk])
        grad_up, grad_down = torch.mm(grad_hidden.t(), rows), torch.mm(grad.t(), hidden)
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
    config = config_of("transition_hidden", normed, num_hidden)
    hidden = normed.new_empty(num_rows, num_hidden)
    grad_hidden = torch.empty_like(hidden)
    blocks = triton.cdiv(num_rows, config["BLOCK_R"])
    up_bias_sums = normed.new_empty(blocks, num_hidden, dtype=torch.float32)
    down_bias_sums = normed.new_empty(blocks, channels, dtype=torch.float32)
    transition_hidden_kernel[(triton.cdiv(num_hidden, config["BLOCK_H"]), blocks)](
        normed, up, up_bias, grad, down, hidden, grad_hidden, up_bias_sums, down_bias_sums,
        num_rows, grad.stride(0),
        C=channels, H=num_hidden, PRECISION=precision(normed.dtype), **config,
    )  # fmt: skip
    grad_up_bias = sum_rows(up_bias_sums, torch.float32)
    return hidden, grad_hidden, grad_up_bias, sum_rows(down_bias_sums, torch.float32)


def _total(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack([p.float() for p in parts]).sum(0)
