"""Triton kernel of dropout on a residual update, its mask a function of coordinates.

Legend: B samples; D1, D2, D3 the other dimensions, D3 the innermost.
"""

import triton
import triton.language as tl

from scalefold_kernels.limits import index

# SplitMix64: the golden-ratio increment and the two multipliers, in two's complement.
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
MIX_2 = tl.constexpr(0x94D049BB133111EB - (1 << 64))
UNIFORM_MASK = tl.constexpr((1 << 24) - 1)


@triton.jit
def mix(state, coordinate):
    """Fold a coordinate into a hash state: int64 modulo 2^64; the masks make shifts logical."""
    x = state + (coordinate + 1).to(tl.int64) * GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit
def dropout_factor(state, c1, c2, c3, threshold, scale, DIMS: tl.constexpr, SHARED: tl.constexpr):
    """What an update is multiplied by: 0 where dropped, else ``scale``.

    Parameters
    ----------
    state
        Hash of key and layer.
    c1, c2, c3
        Coordinates: a number, (R, 1) and (1, C). The result has this shape or, where it does not
        depend on one of them (``SHARED``, 1 to 3; 0 for none), one that is broadcast to it.
    DIMS : int
        How many of them there are, counted from the last.
    """
    zero = tl.zeros((1, 1), tl.int32)
    if DIMS == 3:
        state = mix(state, zero if SHARED == 1 else zero + c1)
    if DIMS >= 2:
        state = mix(state, zero if SHARED == 2 else c2)
    state = mix(state, zero if SHARED == 3 else c3)
    uniform = (state >> 40) & UNIFORM_MASK
    return tl.where(uniform >= threshold, scale, 0.0)


# One binary for all layers: a number 1 would be folded into the code, and is no tensor there.
@triton.jit(do_not_specialize=["layer"])
def residual_dropout_kernel(
    x_ptr, update_ptr, out_ptr, key_ptr, layer, threshold, scale, size1, size2, size3, x_stride_b,
    x_stride1, x_stride2, x_stride3, update_stride_b, update_stride1, update_stride2,
    update_stride3, key_stride,
    DIMS: tl.constexpr, SHARED: tl.constexpr, HAS_X: tl.constexpr, INT64: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_N: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """``out = x + update * mask * scale`` for a tile; without ``HAS_X``, ``out = update * ...``.

    A tile is rows along the shared dimension (``SHARED``: 1, 2, 3, or 0 for none) times a block of
    the coordinates that the mask depends on: each element of the mask is hashed once for
    ``STEPS * BLOCK_S`` elements of the tensor. ``out`` is contiguous. Programs are numbered by
    blocks of rows and of columns; if ``INT64``, by columns and rows, as only the first dimension of
    a launch holds so many.
    """
    COLUMNS: tl.constexpr = 0 if INT64 else 1
    sample = tl.program_id(2).to(tl.int64)
    columns = index(tl.program_id(COLUMNS), INT64) * BLOCK_N + tl.arange(0, BLOCK_N)
    size1, size2 = index(size1, INT64), index(size2, INT64)
    zero = columns * 0
    if SHARED == 1:
        num_shared, num_columns = size1, size2 * size3
        c1, c2, c3 = zero, columns // size3, columns % size3
        x_stride_s, update_stride_s, out_stride_s = x_stride1, update_stride1, size2 * size3
    elif SHARED == 2:
        num_shared, num_columns = size2, size1 * size3
        c1, c2, c3 = columns // size3, zero, columns % size3
        x_stride_s, update_stride_s, out_stride_s = x_stride2, update_stride2, size3
    elif SHARED == 3:
        num_shared, num_columns = size3, size1 * size2
        c1, c2, c3 = columns // size2, columns % size2, zero
        x_stride_s, update_stride_s, out_stride_s = x_stride3, update_stride3, 1
    else:
        num_shared, num_columns = 1, size1 * size2 * size3
        c12 = columns // size3
        c1, c2, c3 = c12 // size2, c12 % size2, columns % size3
        x_stride_s, update_stride_s, out_stride_s = 0, 0, 0

    state = mix(mix(tl.load(key_ptr + sample * key_stride), tl.zeros((), tl.int32)), layer)
    if DIMS == 3:
        state = mix(state, c1)
    if DIMS >= 2:
        state = mix(state, c2)
    state = mix(state, c3)
    uniform = (state >> 40) & UNIFORM_MASK
    factor = tl.where(uniform >= threshold, scale, 0.0)[None, :]

    c1, c2, c3 = c1.to(tl.int64), c2.to(tl.int64), c3.to(tl.int64)
    update_ptr += sample * update_stride_b
    x_columns = sample * x_stride_b + c1 * x_stride1 + c2 * x_stride2 + c3 * x_stride3
    update_columns = (c1 * update_stride1 + c2 * update_stride2 + c3 * update_stride3)[None, :]
    out_columns = (sample * size1 * size2 * size3 + (c1 * size2 + c2) * size3 + c3)[None, :]
    for step in tl.static_range(STEPS):
        first = (tl.program_id(1 - COLUMNS) * STEPS + step) * BLOCK_S
        rows = (first + tl.arange(0, BLOCK_S)).to(tl.int64)[:, None]
        inside = (rows < num_shared) & (columns < num_columns)[None, :]
        update = tl.load(update_ptr + rows * update_stride_s + update_columns, mask=inside)
        out = update.to(tl.float32) * factor
        if HAS_X:
            x = tl.load(x_ptr + rows * x_stride_s + x_columns[None, :], mask=inside)
            out += x.to(tl.float32)
        tl.store(out_ptr + rows * out_stride_s + out_columns, out, mask=inside)
