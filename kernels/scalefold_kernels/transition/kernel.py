"""Triton kernels of the transition: LayerNorm, linear, ReLU, linear; and of its backward.

Legend: R rows, C channels, H hidden channels.
"""

import triton
import triton.language as tl

from scalefold_kernels.norm.kernel import standardise


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
def layer_norm(x, weight_ptr, bias_ptr, channels, C: tl.constexpr, EPS: tl.constexpr):
    """Rows normalised in float32, scaled and shifted, in the type of x."""
    wide = x.to(tl.float32)
    inside = channels < C
    centred = tl.where(inside[None, :], wide - (tl.sum(wide, axis=1) / C)[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=1) / C + EPS)
    weight = tl.load(weight_ptr + channels, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channels, mask=inside, other=0.0).to(tl.float32)
    return (centred * rstd[:, None] * weight[None, :] + bias[None, :]).to(x.dtype)


@triton.jit
def transition_forward_kernel(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    up_ptr,
    up_bias_ptr,
    down_ptr,
    down_bias_ptr,
    out_ptr,
    num_rows,
    x_stride,
    C: tl.constexpr,
    H: tl.constexpr,
    EPS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """``x + down(relu(up(norm(x))))`` of a block of rows; hidden channels never leave the chip."""
    FITS: tl.constexpr = C == BLOCK_C and H % BLOCK_H == 0
    first = tl.program_id(0) * BLOCK_R
    channels = tl.arange(0, BLOCK_C)
    # Offsets in a block are 32 bits wide: 64 would need registers that the products want.
    # Rows beyond the end repeat the last one, and are not written.
    rows = tl.minimum(tl.arange(0, BLOCK_R), num_rows - 1 - first)
    x_ptrs = x_ptr + tl.cast(first, tl.int64) * x_stride + rows[:, None] * x_stride
    x = tl.load(x_ptrs + channels[None, :], mask=(channels < C)[None, :], other=0.0)
    normed = layer_norm(x, norm_weight_ptr, norm_bias_ptr, channels, C, EPS)
    bias = tl.load(down_bias_ptr + channels, mask=channels < C, other=0.0).to(tl.float32)
    out = x.to(tl.float32) + bias[None, :]  # before the loop, where x is at hand
    for start in range(0, H, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        up = load_matrix(up_ptr, h, channels, H, C, FITS)
        down = load_matrix(down_ptr, channels, h, C, H, FITS)
        up_bias = tl.load(up_bias_ptr + h, mask=h < H, other=0.0).to(tl.float32)
        hidden = tl.dot(normed, up.T, input_precision=PRECISION) + up_bias[None, :]
        hidden = tl.maximum(hidden, 0.0).to(x.dtype)
        out = tl.dot(hidden, down.T, out, input_precision=PRECISION)
    rows = tl.arange(0, BLOCK_R)
    out_ptrs = out_ptr + tl.cast(first, tl.int64) * C
    tl.store(
        out_ptrs + (rows[:, None] * C + channels[None, :]),
        out.to(x.dtype),
        mask=(rows < num_rows - first)[:, None] & (channels < C)[None, :],
    )


@triton.jit
def transition_hidden_kernel(
    normed_ptr,
    up_ptr,
    up_bias_ptr,
    grad_ptr,
    down_ptr,
    hidden_ptr,
    grad_hidden_ptr,
    up_bias_sums_ptr,
    down_bias_sums_ptr,
    num_rows,
    grad_stride,
    C: tl.constexpr,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
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
def transition_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    normed_ptr,
    x_hat_ptr,
    rstd_ptr,
    num_rows,
    x_stride,
    C: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """A block of rows normalised, with weight and bias and without."""
    rows = tl.cast(tl.program_id(0), tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    channels = tl.arange(0, BLOCK_C)
    inside_c = channels < C
    inside = (rows < num_rows)[:, None] & inside_c[None, :]
    x_ptrs = x_ptr + rows[:, None] * x_stride + channels[None, :]
    x = tl.load(x_ptrs, mask=inside, other=0.0).to(tl.float32)
    x_hat, _, rstd = standardise(x, inside_c, C, EPS, BLOCK_C)
    weight = tl.load(weight_ptr + channels, mask=inside_c, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channels, mask=inside_c, other=0.0).to(tl.float32)
    normed = x_hat * weight[None, :] + bias[None, :]
    kind = x_hat_ptr.dtype.element_ty
    at = rows[:, None] * C + channels[None, :]
    tl.store(normed_ptr + at, normed.to(kind), mask=inside)
    tl.store(x_hat_ptr + at, x_hat.to(kind), mask=inside)
    tl.store(rstd_ptr + rows, rstd, mask=rows < num_rows)


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
    products_ptr,
    sums_ptr,
    weight_sums_ptr,
    grad_sums_ptr,
    up_ptr,
    grad_up_ptr,
    grad_up_bias_ptr,
    grad_down_ptr,
    grad_down_bias_ptr,
    norm_sums_ptr,
    num_parts,
    num_row_parts,
    C: tl.constexpr,
    H: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Gradients of weights and biases, and the norm's as sums for each block of H.

    ``products`` (2, parts, H, C), ``sums`` (parts, H), ``weight_sums`` and ``grad_sums`` (other
    parts, C), float32, are parts of sums over rows: of ``grad_hidden^T normed`` and of
    ``hidden^T grad``, of ``grad_hidden``, of the gradient of the norm's weight, and of ``grad``.
    The gradient of the norm's bias is ``sums up``.
    """
    block = tl.program_id(0)
    h = block * BLOCK_H + tl.arange(0, BLOCK_H)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    at = h[:, None] * C + c[None, :]
    inside = (h < H)[:, None] & (c < C)[None, :]
    grad_up = tl.zeros((BLOCK_H, BLOCK_C), tl.float32)
    down = tl.zeros((BLOCK_H, BLOCK_C), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    for part in tl.range(num_parts, loop_unroll_factor=4):
        grad_up += tl.load(products_ptr + part * H * C + at, mask=inside, other=0.0)
        down += tl.load(products_ptr + (num_parts + part) * H * C + at, mask=inside, other=0.0)
        total += tl.load(sums_ptr + part * H + h, mask=h < H, other=0.0)
    kind = grad_up_ptr.dtype.element_ty
    tl.store(grad_up_ptr + at, grad_up.to(kind), mask=inside)
    down_inside = (c < C)[:, None] & (h < H)[None, :]
    tl.store(grad_down_ptr + c[:, None] * H + h[None, :], down.T.to(kind), mask=down_inside)
    if tl.program_id(1) == 0:
        tl.store(grad_up_bias_ptr + h, total.to(kind), mask=h < H)
    up = tl.load(up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    norm_sums = norm_sums_ptr + block * 2 * C + c
    tl.store(norm_sums + C, tl.sum(total[:, None] * up, 0), mask=c < C)
    if block == 0:
        grad_sums = sum_parts(grad_sums_ptr, num_row_parts, c, C, BLOCK_P)
        tl.store(grad_down_bias_ptr + c, grad_sums.to(kind), mask=c < C)
        weight_sums = sum_parts(weight_sums_ptr, num_row_parts, c, C, BLOCK_P)
        tl.store(norm_sums, weight_sums, mask=c < C)
    else:
        tl.store(norm_sums, tl.zeros((BLOCK_C,), tl.float32), mask=c < C)
