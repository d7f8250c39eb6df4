"""Triangle multiplication: the kernels.

Legend: P = B I J positions of the pair representation, Z its channels, C hidden channels. ``z``,
``gate`` and ``out`` are (P, Z), channels last; the operands ``a``, ``b`` and their product are
(C, P), positions last, so that the product is a plain batched matrix product. A program holds all
channels of BLOCK_P positions.

Normalised values before scale and shift are called *standard* here. Weight gradients are taken
against them: with G the sum over positions of gradient x standard, and g that of the gradient, a
projection of ``standard * scale + shift`` has the weight gradient G * scale + g shift^T, and the
normalisation's own gradients are the column sums of W * G and of W * g: no sum over positions but
those of the matrix products.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from scalefold_kernels.dropout.kernel import UNIFORM_MASK, mix
from scalefold_kernels.limits import index

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _sigmoid(x):
    """Two special-function instructions; relative error about 2^-21 of any normal result.

    Impure, so that Triton does not make it again for each layout in which the result is used.
    """
    if INTERPRETED:
        return tl.sigmoid(x)
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .f32 t;
            mul.f32 t, $1, 0fBFB8AA3B;
            ex2.approx.ftz.f32 t, t;
            add.f32 t, t, 0f3F800000;
            rcp.approx.ftz.f32 $0, t;
            }""",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _matrix(pointer, first_row, ROWS, COLUMNS, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Rows first_row... of a contiguous (ROWS, COLUMNS) matrix, zeros beyond its edges."""
    row = first_row + tl.arange(0, BLOCK_R)[:, None]
    column = tl.arange(0, BLOCK_C)[None, :]
    inside = (row < ROWS) & (column < COLUMNS)
    return tl.load(pointer + row * COLUMNS + column, mask=inside, other=0.0)


@triton.jit
def _vector(pointer, first, SIZE, BLOCK: tl.constexpr):
    index = first + tl.arange(0, BLOCK)
    return tl.load(pointer + index, mask=index < SIZE, other=0.0).to(tl.float32)


@triton.jit
def _standardise(x, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, eps):
    """Rows of zero mean and unit variance, zeros in the padding; mean; reciprocal deviation."""
    mean = tl.sum(x, 1) / CHANNELS
    centred = x - mean[:, None]
    if CHANNELS != BLOCK:
        centred = tl.where(tl.arange(0, BLOCK)[None, :] < CHANNELS, centred, 0.0)
    reciprocal = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / CHANNELS + eps)
    return centred * reciprocal[:, None], mean, reciprocal


@triton.jit
def _norm_gradient(gradient, standard, reciprocal, CHANNELS: tl.constexpr):
    """Gradient of the input of `_standardise` from that of its result."""
    along = tl.sum(gradient * standard, 1) / CHANNELS
    mean = tl.sum(gradient, 1) / CHANNELS
    return (gradient - mean[:, None] - standard * along[:, None]) * reciprocal[:, None]


@triton.jit
def _dropped_out(
    update, keep, keep_b, keep_i, keep_j, factor, position, column, inside, ROWS, COLUMNS
):  # fmt: skip
    """An update (positions, columns) after dropout; ``keep`` from `dropout_mask`."""
    j = position % COLUMNS
    i = position // COLUMNS % ROWS
    sample = position // COLUMNS // ROWS
    row = keep + sample.to(tl.int64) * keep_b + i.to(tl.int64) * keep_i + j * keep_j
    kept = tl.load(row[:, None] + column[None, :], mask=inside, other=0)
    return update * (kept.to(tl.float32) * factor)


@triton.jit
def projection_forward(
    z, mask, norm_weight, norm_bias,
    a_weight, a_bias, a_gate_weight, a_gate_bias,
    b_weight, b_bias, b_gate_weight, b_gate_bias,
    gate_weight, gate_bias,
    a, b, gate, mean, reciprocal, P, eps,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    zed = tl.arange(0, BLOCK_Z)
    inside = (position[:, None] < P) & (zed[None, :] < Z)
    row = position.to(tl.int64)[:, None] * Z
    x = tl.load(z + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    mask_P = tl.load(mask + position, mask=position < P, other=0.0).to(tl.float32)
    standard, mean_P, reciprocal_P = _standardise(x, Z, BLOCK_Z, eps)
    tl.store(mean + position, mean_P, mask=position < P)
    tl.store(reciprocal + position, reciprocal_P, mask=position < P)
    normed = standard * _vector(norm_weight, 0, Z, BLOCK_Z)[None, :]
    normed = (normed + _vector(norm_bias, 0, Z, BLOCK_Z)[None, :]).to(z.dtype.element_ty)
    for step in tl.range(0, 2 * ((C + BLOCK_C - 1) // BLOCK_C), num_stages=STAGES):
        channels = step // 2 * BLOCK_C
        is_a = step % 2 == 0
        weight = tl.where(is_a, a_weight, b_weight)
        gate_w = tl.where(is_a, a_gate_weight, b_gate_weight)
        opened = tl.dot(
            normed, tl.trans(_matrix(gate_w, channels, C, Z, BLOCK_C, BLOCK_Z)),
            input_precision=PRECISION,
        )  # fmt: skip
        value = tl.dot(
            normed, tl.trans(_matrix(weight, channels, C, Z, BLOCK_C, BLOCK_Z)),
            input_precision=PRECISION,
        )  # fmt: skip
        opened += _vector(tl.where(is_a, a_gate_bias, b_gate_bias), channels, C, BLOCK_C)[None, :]
        value += _vector(tl.where(is_a, a_bias, b_bias), channels, C, BLOCK_C)[None, :]
        value *= _sigmoid(opened) * mask_P[:, None]
        channel = channels + tl.arange(0, BLOCK_C)[None, :]
        tl.store(
            tl.where(is_a, a, b) + channel.to(tl.int64) * P + position[:, None],
            value.to(z.dtype.element_ty),
            mask=(position[:, None] < P) & (channel < C),
        )
    for first in tl.range(0, Z, BLOCK_C, num_stages=STAGES):
        w = _matrix(gate_weight, first, Z, Z, BLOCK_C, BLOCK_Z)
        logit = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        logit += _vector(gate_bias, first, Z, BLOCK_C)[None, :]
        column = first + tl.arange(0, BLOCK_C)
        inside_column = (position[:, None] < P) & (column[None, :] < Z)
        logit = logit.to(gate.dtype.element_ty)
        tl.store(gate + row + column[None, :], logit, mask=inside_column)


@triton.jit
def output_forward(
    z, product, gate, norm_weight, norm_bias, weight, bias,
    keep, keep_b, keep_i, keep_j, factor, out, mean, reciprocal, P, ROWS, COLUMNS, eps,
    HAS_DROPOUT: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)[None, :]
    inside = (position[:, None] < P) & (channel < C)
    offset = channel.to(tl.int64) * P + position[:, None]
    x = tl.load(product + offset, mask=inside, other=0.0).to(tl.float32)
    standard, mean_P, reciprocal_P = _standardise(x, C, BLOCK_C, eps)
    tl.store(mean + position, mean_P, mask=position < P)
    tl.store(reciprocal + position, reciprocal_P, mask=position < P)
    normed = standard * _vector(norm_weight, 0, C, BLOCK_C)[None, :]
    normed = (normed + _vector(norm_bias, 0, C, BLOCK_C)[None, :]).to(product.dtype.element_ty)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < P) & (column[None, :] < Z)
        logit = tl.load(gate + row + column[None, :], mask=inside_PZ, other=0.0)
        w = _matrix(weight, first, Z, C, BLOCK_Z, BLOCK_C)
        value = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        value += _vector(bias, first, Z, BLOCK_Z)[None, :]
        value *= _sigmoid(logit.to(tl.float32))
        if HAS_DROPOUT:
            value = _dropped_out(
                value, keep, keep_b, keep_i, keep_j, factor, position, column, inside_PZ,
                ROWS, COLUMNS,
            )  # fmt: skip
        value += tl.load(z + row + column[None, :], mask=inside_PZ, other=0.0).to(tl.float32)
        tl.store(out + row + column[None, :], value.to(out.dtype.element_ty), mask=inside_PZ)


@triton.jit
def output_backward(
    d_out, product, gate, mean, reciprocal, norm_weight, norm_bias, weight, bias,
    keep, keep_b, keep_i, keep_j, factor,
    d_product, d_gate, d_value, standard, P, ROWS, COLUMNS,
    HAS_DROPOUT: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of product and gate; d_value (P, Z) and standard (C, P) for the weight's."""
    dtype: tl.constexpr = product.dtype.element_ty
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = position.to(tl.int64)[:, None] * Z
    channel = tl.arange(0, BLOCK_C)[None, :]
    inside_PC = (position[:, None] < P) & (channel < C)
    offset_PC = channel.to(tl.int64) * P + position[:, None]
    x = tl.load(product + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    mean_P = tl.load(mean + position, mask=position < P, other=0.0)
    reciprocal_P = tl.load(reciprocal + position, mask=position < P, other=0.0)
    scale_C = _vector(norm_weight, 0, C, BLOCK_C)
    shift_C = _vector(norm_bias, 0, C, BLOCK_C)
    standard_PC = (x - mean_P[:, None]) * reciprocal_P[:, None]
    normed = (standard_PC * scale_C[None, :] + shift_C[None, :]).to(dtype)
    tl.store(standard + offset_PC, standard_PC.to(dtype), mask=inside_PC)
    d_normed = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in tl.range(0, Z, BLOCK_Z, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_Z)
        inside_PZ = (position[:, None] < P) & (column[None, :] < Z)
        offset_PZ = row + column[None, :]
        w = _matrix(weight, first, Z, C, BLOCK_Z, BLOCK_C)
        value = tl.dot(normed, tl.trans(w), input_precision=PRECISION)
        value += _vector(bias, first, Z, BLOCK_Z)[None, :]
        gradient = tl.load(d_out + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32)
        opened = _sigmoid(tl.load(gate + offset_PZ, mask=inside_PZ, other=0.0).to(tl.float32))
        if HAS_DROPOUT:
            gradient = _dropped_out(
                gradient, keep, keep_b, keep_i, keep_j, factor, position, column, inside_PZ,
                ROWS, COLUMNS,
            )  # fmt: skip
        gradient *= opened
        d_logit = gradient * value * (1.0 - opened)
        tl.store(d_gate + offset_PZ, d_logit.to(dtype), mask=inside_PZ)
        gradient = gradient.to(dtype)
        tl.store(d_value + offset_PZ, gradient, mask=inside_PZ)
        d_normed = tl.dot(gradient, w, d_normed, input_precision=PRECISION)
    # Read again: held over the loop it would cost registers, and with them warps.
    x = tl.load(product + offset_PC, mask=inside_PC, other=0.0).to(tl.float32)
    standard_PC = (x - mean_P[:, None]) * reciprocal_P[:, None]
    d_x = _norm_gradient(d_normed * scale_C[None, :], standard_PC, reciprocal_P, C)
    tl.store(d_product + offset_PC, d_x.to(dtype), mask=inside_PC)


@triton.jit
def projection_backward(
    d_a, d_b, d_gate, d_through, z, mask, mean, reciprocal, a, b, norm_weight, norm_bias,
    a_weight, a_gate_weight, a_gate_bias, b_weight, b_gate_weight, b_gate_bias, gate_weight,
    d_z, d_values, standard, P,
    HAS_THROUGH: tl.constexpr,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Z: tl.constexpr,
    BLOCK_C: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of z; d_values (4, C, P) and standard (P, Z) for those of the weights.

    d_through: gradient of z elsewhere, added here. d_values: gradients of a's value and its gate's
    logit, then of b's.
    """
    dtype: tl.constexpr = z.dtype.element_ty
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    zed = tl.arange(0, BLOCK_Z)
    inside = (position[:, None] < P) & (zed[None, :] < Z)
    row = position.to(tl.int64)[:, None] * Z
    x = tl.load(z + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    mean_P = tl.load(mean + position, mask=position < P, other=0.0)
    reciprocal_P = tl.load(reciprocal + position, mask=position < P, other=0.0)
    mask_P = tl.load(mask + position, mask=position < P, other=0.0).to(tl.float32)
    scale_Z = _vector(norm_weight, 0, Z, BLOCK_Z)
    standard_PZ = (x - mean_P[:, None]) * reciprocal_P[:, None]
    normed = standard_PZ * scale_Z[None, :] + _vector(norm_bias, 0, Z, BLOCK_Z)[None, :]
    normed = normed.to(dtype)
    tl.store(standard + row + zed[None, :], standard_PZ.to(dtype), mask=inside)
    d_normed = tl.zeros((BLOCK_P, BLOCK_Z), tl.float32)
    for step in tl.range(0, 2 * ((C + BLOCK_C - 1) // BLOCK_C), num_stages=STAGES):
        first = step // 2 * BLOCK_C
        is_a = step % 2 == 0
        channel = first + tl.arange(0, BLOCK_C)[None, :]
        inside_PC = (position[:, None] < P) & (channel < C)
        offset = channel.to(tl.int64) * P + position[:, None]
        gradient = tl.load(tl.where(is_a, d_a, d_b) + offset, mask=inside_PC, other=0.0)
        gradient = gradient.to(tl.float32)
        value = tl.load(tl.where(is_a, a, b) + offset, mask=inside_PC, other=0.0)
        gate_w = tl.where(is_a, a_gate_weight, b_gate_weight)
        gate_w = _matrix(gate_w, first, C, Z, BLOCK_C, BLOCK_Z)
        w = _matrix(tl.where(is_a, a_weight, b_weight), first, C, Z, BLOCK_C, BLOCK_Z)
        opened = tl.dot(normed, tl.trans(gate_w), input_precision=PRECISION)
        opened += _vector(tl.where(is_a, a_gate_bias, b_gate_bias), first, C, BLOCK_C)[None, :]
        opened = _sigmoid(opened)
        # With operand = mask gate value: d_logit = d_operand mask value gate (1 - gate).
        d_value = (gradient * opened * mask_P[:, None]).to(dtype)
        d_logit = (gradient * value.to(tl.float32) * (1.0 - opened)).to(dtype)
        d_normed = tl.dot(d_value, w, d_normed, input_precision=PRECISION)
        d_normed = tl.dot(d_logit, gate_w, d_normed, input_precision=PRECISION)
        at = d_values + tl.where(is_a, 0, 2) * C * tl.cast(P, tl.int64) + offset
        tl.store(at, d_value, mask=inside_PC)
        tl.store(at + C * tl.cast(P, tl.int64), d_logit, mask=inside_PC)
    for first in tl.range(0, Z, BLOCK_C, num_stages=STAGES):
        column = first + tl.arange(0, BLOCK_C)
        inside_column = (position[:, None] < P) & (column[None, :] < Z)
        d_logit = tl.load(d_gate + row + column[None, :], mask=inside_column, other=0.0)
        w = _matrix(gate_weight, first, Z, Z, BLOCK_C, BLOCK_Z)
        d_normed = tl.dot(d_logit, w, d_normed, input_precision=PRECISION)
    x = tl.load(z + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    standard_PZ = (x - mean_P[:, None]) * reciprocal_P[:, None]
    d_x = _norm_gradient(d_normed * scale_Z[None, :], standard_PZ, reciprocal_P, Z)
    if HAS_THROUGH:
        d_x += tl.load(d_through + row + zed[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(d_z + row + zed[None, :], d_x.to(dtype), mask=inside)


@triton.jit
def _sum_products(
    gradient, standard, row, column, P, ROWS, COLUMNS, gradient_row, gradient_position,
    standard_position, standard_column, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over this program's positions of gradient x standard, and of the gradient (16 times)."""
    dtype: tl.constexpr = gradient.dtype.element_ty
    products = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    sums = tl.zeros((row.shape[0], 16), tl.float32)
    ones = tl.full((BLOCK_P, 16), 1.0, dtype)
    tiles = tl.cdiv(P, BLOCK_P)
    for turn in range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile = tiles - 1 - turn  # the last ones written are still in the L2 cache
        position = (tile * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)
        left = tl.load(
            gradient + row[:, None] * gradient_row + position[None, :] * gradient_position,
            mask=(row[:, None] < ROWS) & (position[None, :] < P),
            other=0.0,
        )
        right = tl.load(
            standard + position[:, None] * standard_position + column[None, :] * standard_column,
            mask=(position[:, None] < P) & (column[None, :] < COLUMNS),
            other=0.0,
        )
        products = tl.dot(left, right, products, input_precision=PRECISION)
        sums = tl.dot(left, ones, sums, input_precision=PRECISION)
    return products, sums


@triton.jit
def _store_part(partial, partial_bias, products, sums, first, row, column, TOTAL, ROWS, COLUMNS):
    """Part s of partial (S, TOTAL, COLUMNS) and partial_bias (S, TOTAL), rows first + row."""
    place = tl.program_id(0) * TOTAL + first + row
    inside = (row[:, None] < ROWS) & (column[None, :] < COLUMNS)
    tl.store(partial + place[:, None] * COLUMNS + column[None, :], products, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(partial_bias + place, tl.sum(sums, 1) / 16, mask=row < ROWS)


@triton.jit
def output_weights(
    d_value, standard, partial, partial_bias, P,
    INT64: tl.constexpr, Z: tl.constexpr, C: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of d_value (P, Z) x standard (C, P); program (s, t, u): part, rows and columns."""
    row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    products, sums = _sum_products(
        d_value, standard, row, index(column, INT64), P, Z, C, 1, Z, 1, P, BLOCK_P, PRECISION
    )
    _store_part(partial, partial_bias, products, sums, 0, row, column, Z, Z, C)


@triton.jit
def projection_weights(
    d_values, d_gate, standard, partial, partial_bias, P,
    Z: tl.constexpr, C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of d_values (4 C, P), then of d_gate (P, Z), x standard (P, Z)."""
    ABOVE: tl.constexpr = (4 * C + BLOCK_R - 1) // BLOCK_R
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    if tl.program_id(1) < ABOVE:
        row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
        products, sums = _sum_products(
            d_values, standard, row.to(tl.int64), column, P, 4 * C, Z, P, 1, Z, 1,
            BLOCK_P, PRECISION,
        )  # fmt: skip
        _store_part(partial, partial_bias, products, sums, 0, row, column, 4 * C + Z, 4 * C, Z)
    else:
        row = (tl.program_id(1) - ABOVE) * BLOCK_R + tl.arange(0, BLOCK_R)
        products, sums = _sum_products(
            d_gate, standard, row, column, P, Z, Z, 1, Z, Z, 1, BLOCK_P, PRECISION
        )
        _store_part(partial, partial_bias, products, sums, 4 * C, row, column, 4 * C + Z, Z, Z)


@triton.jit
def finish_weights(
    partial, partial_bias, scale, shift, weight_0, weight_1, weight_2, weight_3, weight_4,
    result, share, PARTS, TOTAL, ROWS, LAST_ROWS, COLUMNS: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Adds the parts up, undoes the normalisation's scale and shift; see the top of this file.

    Matrix t of n has ROWS rows (the last: LAST_ROWS). result: the gradients of scale and shift
    (left to `sum_rows`), then of each matrix and its bias. share (programs, 2, COLUMNS): what each
    program's rows give to those of scale and shift. Program (r, t, n): rows, matrix, columns.
    """
    matrix = tl.program_id(1)
    weight = weight_0
    if matrix == 1:
        weight = weight_1
    elif matrix == 2:
        weight = weight_2
    elif matrix == 3:
        weight = weight_3
    elif matrix == 4:
        weight = weight_4
    rows = tl.where(matrix == tl.num_programs(1) - 1, LAST_ROWS, ROWS)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row[:, None] < rows) & (column[None, :] < COLUMNS)
    product = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    bias = tl.zeros((BLOCK_R,), tl.float32)
    place = matrix * ROWS + row
    offset = place[:, None] * COLUMNS + column[None, :]
    for first in range(0, PARTS, BLOCK_S):
        part = first + tl.arange(0, BLOCK_S)
        at = partial + part[:, None, None] * TOTAL * COLUMNS + offset[None, :, :]
        there = (part < PARTS)[:, None, None] & inside[None, :, :]
        product += tl.sum(tl.load(at, mask=there, other=0.0), 0)
        at = partial_bias + part[:, None] * TOTAL + place[None, :]
        there = (part < PARTS)[:, None] & (row < rows)[None, :]
        bias += tl.sum(tl.load(at, mask=there, other=0.0), 0)
    w = tl.load(weight + row[:, None] * COLUMNS + column[None, :], mask=inside, other=0.0)
    w = w.to(tl.float32)
    first_column = tl.program_id(2) * BLOCK_N
    gradient = product * _vector(scale, first_column, COLUMNS, BLOCK_N)[None, :]
    gradient += bias[:, None] * _vector(shift, first_column, COLUMNS, BLOCK_N)[None, :]
    first = 2 * COLUMNS + matrix * ROWS * (COLUMNS + 1)
    dtype: tl.constexpr = result.dtype.element_ty
    at = first + row[:, None] * COLUMNS + column[None, :]
    tl.store(result + at, gradient.to(dtype), mask=inside)
    if tl.program_id(2) == 0:
        tl.store(result + first + rows * COLUMNS + row, bias.to(dtype), mask=row < rows)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    at = share + program * 2 * COLUMNS + column
    tl.store(at, tl.sum(w * product, 0), mask=column < COLUMNS)
    tl.store(at + COLUMNS, tl.sum(w * bias[:, None], 0), mask=column < COLUMNS)


@triton.jit
def sum_rows(x, out, ROWS, SIZE, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr):
    """(ROWS, SIZE) -> (SIZE,), in fixed order."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for first in range(0, ROWS, BLOCK_R):
        row = first + tl.arange(0, BLOCK_R)
        inside = (row[:, None] < ROWS) & (column[None, :] < SIZE)
        total += tl.load(x + row[:, None] * SIZE + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < SIZE)


# One binary for all layers: a number 1 would be folded into the code, and is no tensor there.
@triton.jit(do_not_specialize=["layer"])
def dropout_mask(
    key, layer, threshold, keep, D2, D3, SIZE,
    SHARED: tl.constexpr, INT64: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Which channels of an update are kept: the mask of `scalefold.ops.dropout`.

    keep: for each sample SIZE = D1 D2 D3 bytes, D3 channels; whether these share one draw is
    SHARED. D1 and D2 are 1 where shared.
    """
    element = index(tl.program_id(0), INT64) * BLOCK + tl.arange(0, BLOCK)
    sample = tl.program_id(1)
    channel, place = element % D3, element // D3
    state = mix(mix(tl.load(key + sample), tl.zeros((), tl.int32)), layer)
    state = mix(mix(state, place // D2), place % D2)
    state = mix(state, channel * 0 if SHARED else channel)
    kept = ((state >> 40) & UNIFORM_MASK) >= threshold
    at = keep + sample.to(tl.int64) * SIZE + element
    tl.store(at, kept.to(tl.uint8), mask=element < SIZE)
