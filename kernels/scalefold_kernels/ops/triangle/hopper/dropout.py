"""Dropout in the kernels for Hopper GPUs: a warp group draws the mask of a tile, bit by bit.

The mask is that of `scalefold.ops.dropout`. Where rows share one, a warp group's tiles have the
same positions in them for lengths that are multiples of 64, and one draw is for all of them; it is
done while the first tile is on its way.

A word is 32 channels of a row, whose four threads q have 8 k + 2 q + e each, k from 0 to 3 and e 0
or 1: see the drawing in `docs/kernels.md`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from scalefold_kernels.dropout.kernel import kept, mix
from scalefold_kernels.gluon import ROWS, mma_layout, unsigned
from scalefold_kernels.ops.triangle.hopper.parts import opaque


@gluon.constexpr_function
def _without(layout, dimensions):
    """Layout of what is left of a tile without these dimensions, last ones first."""
    for dimension in dimensions:
        layout = gl.SliceLayout(dimension, layout)
    return layout


@gluon.jit
def _along(SIZE: gl.constexpr, LAYOUT: gl.constexpr, OTHERS: gl.constexpr):
    """0, 1, ... along the one dimension of a tile that is not of the others, last ones first."""
    x = gl.arange(0, SIZE, layout=_without(LAYOUT, OTHERS))
    for i in gl.static_range(len(OTHERS)):
        x = gl.expand_dims(x, OTHERS[len(OTHERS) - 1 - i])
    return x


@gluon.jit
def _word():
    """Zeros for 32 channels: (row, k, q, e)."""
    return gl.reshape(gl.full([ROWS, 32], 0, gl.int32, mma_layout(32)), [ROWS, 4, 4, 2])


@gluon.jit
def no_bits():
    """(row, q), as those of `draw`."""
    return gl.sum(gl.sum(_word(), 3), 1)


@gluon.jit
def other_mask(first, before, num_positions, size_i, size_j, SHARED: gl.constexpr):
    """Whether the mask of this tile may be another than that of a tile before."""
    if SHARED == 1:
        size, columns = unsigned(size_i * size_j), unsigned(size_j)
        last = unsigned(gl.minimum(first + ROWS, opaque(num_positions)) - 1)
        first, before = unsigned(first), unsigned(before)
        sample = first // size
        other_sample = (before // size ^ sample) | (last // size ^ sample)
        return ((before % columns ^ first % columns) | other_sample) != 0
    else:
        return True


@gluon.jit
def draw(first, dropped, num_positions, size_i, size_j, SHARED: gl.constexpr, WORDS: gl.constexpr):
    """Which channels are kept: bit 8 w + 2 k + e of (row, q) is that of word w's (k, q, e).

    dropped : key (B,), layer, threshold, scale
    SHARED : dimension that shares a mask, 1 to 3, or 0 for none
    """
    key_ptr, layer, threshold, _scale = dropped
    # Else what the compiler makes of them before the loop over tiles would spill.
    layer, num_positions = opaque(layer), opaque(num_positions)
    bits = no_bits()
    L: gl.constexpr = _word().type.layout
    position = unsigned(gl.minimum(first + _along(ROWS, L, (3, 2, 1)), num_positions - 1))
    size_i, size_j = unsigned(size_i), unsigned(size_j)
    line = position // size_j
    i, j = (line % size_i).to(gl.int32), (position % size_j).to(gl.int32)
    state = mix(mix(gl.load(key_ptr + line // size_i), gl.to_tensor(0)), layer)
    state = mix(mix(state, i * 0 if SHARED == 1 else i), j * 0 if SHARED == 2 else j)
    k, q, e = _along(4, L, (3, 2, 0)), _along(4, L, (3, 1, 0)), _along(2, L, (2, 1, 0))
    channel = 8 * k + 2 * q + e + opaque(0)
    for word in range(WORDS):
        hashes = mix(state, channel * 0 if SHARED == 3 else 32 * word + channel)
        of_word = gl.where(kept(hashes, threshold), 1 << (2 * k + e), 0)
        bits |= gl.sum(gl.sum(of_word, 3), 1) << (8 * word)
    return bits


@gluon.jit
def dropped_out(x, bits, channel, scale):
    """A tile of an update, channels ``channel`` and following, after dropout; bits from `draw`."""
    M: gl.constexpr = x.shape[0]
    WORDS: gl.constexpr = x.shape[1] // 32
    y = gl.reshape(x, [M, WORDS, 4, 4, 2])
    ALL: gl.constexpr = y.type.layout
    bits = gl.convert_layout(bits, _without(ALL, (4, 2, 1)), assert_trivial=True)
    bits = gl.expand_dims(gl.expand_dims(gl.expand_dims(bits >> (channel // 4), 1), 2), 4)
    w, k = _along(WORDS, ALL, (4, 3, 2, 0)), _along(4, ALL, (4, 3, 1, 0))
    bit = 1 << (8 * w + 2 * k + _along(2, ALL, (3, 2, 1, 0)))
    y = gl.where((bits & bit) != 0, y * scale, 0.0)
    return gl.convert_layout(gl.reshape(y, x.shape), x.type.layout)
