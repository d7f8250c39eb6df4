"""Triton kernels of the transition: LayerNorm, linear, ReLU, linear; and of its backward.

Legend: R rows, C channels, H hidden channels.
"""

import triton
import triton.language as tl

from scalefold_kernels.ops.norm.kernel import standardise, store_statistics


@triton.jit
def load_matrix(
    ptr,
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FITS: tl.constexpr,
):
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
    C: tl.constexpr, H: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
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
    x_hat, mean, rstd = standardise(x.to(tl.float32), inside_c, C, EPS, BLOCK_C)
    scale = tl.load(norm_weight_ptr + channels, mask=inside_c, other=0.0).to(tl.float32)
    shift = tl.load(norm_bias_ptr + channels, mask=inside_c, other=0.0).to(tl.float32)
    normed = (x_hat * scale[None, :] + shift[None, :]).to(x.dtype)
    at = tl.arange(0, BLOCK_R)[:, None] * C + channels[None, :]
    inside = (tl.arange(0, BLOCK_R) < num_rows - first)[:, None] & inside_c[None, :]
    if normed_ptr is not None:
        tl.store(normed_ptr + tl.cast(first, tl.int64) * C + at, normed, mask=inside)
        store_statistics(stats_ptr, first + tl.arange(0, BLOCK_R), num_rows, mean, rstd)
    bias = tl.load(down_bias_ptr + channels, mask=inside_c, other=0.0).to(tl.float32)
    out = x.to(tl.float32) + bias[None, :]  # before the loop, where x is at hand
    for start in range(0, H, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        up = load_matrix(up_ptr, h, channels, H, C, FITS)
        down = load_matrix(down_ptr, channels, h, C, H, FITS)
        up_bias = tl.load(up_bias_ptr + h, mask=h < H, other=0.0).to(tl.float32)
        hidden = tl.dot(normed, up.T, input_precision=PRECISION) + up_bias[None, :]
        hidden = tl.maximum(hidden, 0.0).to(x.dtype)
        out = tl.dot(hidden, down.T, out, input_precision=PRECISION)
    # In other words than before the loop: the same mask would be kept over it, and spill.
    inside = (first + tl.arange(0, BLOCK_R) < num_rows)[:, None] & inside_c[None, :]
    tl.store(out_ptr + tl.cast(first, tl.int64) * C + at, out.to(x.dtype), mask=inside)


@triton.jit
def transition_hidden_kernel(
    normed_ptr, up_ptr, up_bias_ptr, grad_ptr, down_ptr, hidden_ptr, grad_hidden_ptr,
    up_bias_sums_ptr, down_bias_sums_ptr, num_rows, grad_stride,
    C: tl.constexpr, H: tl.constexpr, PRECISION: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Hidden channels anew, their gradient, and this block's sums for the biases' gradients.

    Both products have the same shape and one loop over channels.
    """
    FITS: tl.constexpr = C % BLOCK_C == 0 and H % BLOCK_H == 0
    first_h = tl.program_id(0) * BLOCK_H
    block = tl.program_id(1)
    first = block * BLOCK_R
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
        up = load_matrix(up_ptr, h, c, H, C, FITS)
        hidden = tl.dot(normed, up.T, hidden, input_precision=PRECISION)
        grad = tl.load(grad_rows + c[None, :], mask=inside, other=0.0)
        down = load_matrix(down_ptr, c, h, C, H, FITS)
        grad_hidden = tl.dot(grad, down, grad_hidden, input_precision=PRECISION)
        if first_h == 0:
            sums = tl.sum(grad.to(tl.float32), axis=0)
            tl.store(down_bias_sums_ptr + block * C + c, sums, mask=c < C)
    hidden += tl.load(up_bias_ptr + h, mask=h < H, other=0.0).to(tl.float32)[None, :]
    grad_hidden = tl.where(hidden > 0.0, grad_hidden, 0.0)
    # Rows beyond the end have gradient 0.
    tl.store(up_bias_sums_ptr + block * H + h, tl.sum(grad_hidden, axis=0), mask=h < H)
    offset = tl.cast(first, tl.int64) * H + first_h
    at = rows[:, None] * H + columns[None, :]
    inside = row_inside & (h < H)[None, :]
    kind = hidden_ptr.dtype.element_ty
    tl.store(hidden_ptr + offset + at, tl.maximum(hidden, 0.0).to(kind), mask=inside)
    tl.store(grad_hidden_ptr + offset + at, grad_hidden.to(kind), mask=inside)


@triton.jit
def sum_parts(ptr, num_parts, columns, WIDTH: tl.constexpr, BLOCK_P: tl.constexpr):
    """Sum of (parts, WIDTH) over its rows, of some columns."""
    total = tl.zeros((BLOCK_P, columns.shape[0]), tl.float32)
    for first in range(0, num_parts, BLOCK_P):
        parts = first + tl.arange(0, BLOCK_P)
        inside = (parts < num_parts)[:, None] & (columns < WIDTH)[None, :]
        total += tl.load(ptr + parts[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def transition_finish_kernel(
    products_ptr, sums_ptr, weight_sums_ptr, grad_sums_ptr, up_ptr, grad_norm_ptr, grad_up_ptr,
    grad_up_bias_ptr, grad_down_ptr, grad_down_bias_ptr, num_parts, num_row_parts,
    C: tl.constexpr, H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """All parameters' gradients from parts of sums over rows.

    ``products`` (2, parts, H, C), ``sums`` (parts, H), ``weight_sums`` and ``grad_sums`` (other
    parts, C), float32, are of ``grad_hidden^T normed`` and of ``hidden^T grad``, of
    ``grad_hidden``, of the gradient of the norm's weight, and of ``grad``. The gradient of the
    norm's bias is ``sums up``. A program has a block of H and C; the last three along H have one
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
        total = sum_parts(weight_sums_ptr, num_row_parts, c, C, BLOCK_P)
        tl.store(grad_norm_ptr + c, total, mask=c < C)
    elif block == BLOCKS + 1:
        total = sum_parts(grad_sums_ptr, num_row_parts, c, C, BLOCK_P)
        tl.store(grad_down_bias_ptr + c, total, mask=c < C)
    else:
        total = multiply_sums(sums_ptr, up_ptr, num_parts, c, C, H, BLOCK_P)
        tl.store(grad_norm_ptr + C + c, total, mask=c < C)


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
