"""What the transition's kernels for Hopper GPUs share.

A CTA stays for many tiles of 128 rows, 64 for each of two warp groups. Hidden channels never leave
the chip in forward. Beyond the last row, channel and hidden channel TMA reads zeros and writes
nothing. Legend: C channels, H hidden channels; BLOCK_C, BLOCK_H their blocks in shared memory (all
of C). ``up`` is (H, C), ``down`` (C, H).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from scalefold_kernels import smem
from scalefold_kernels.smem import SUMS
from scalefold_kernels.tma import padded

DEPTH = gl.constexpr(64)
"""Depth of the pieces of long products: a piece's row is one swizzled unit of 128 bytes."""


def width_of(channels: int) -> int:
    """Channels in shared memory; those beyond the tensor's are zeros."""
    return max(DEPTH.value, padded(channels))


@gluon.jit
def new_columns(NUMBER: gl.constexpr):
    """Tiles in shared memory; the n-th has ones in column n, and zeros elsewhere.

    A product with it sums the left operand over the inner dimension, into column n.
    """
    B: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [4, 1], [1, 0])
    tiles = smem.matrices(NUMBER, DEPTH, SUMS)
    column = gl.arange(0, SUMS, layout=gl.SliceLayout(0, B))
    zero = gl.full([DEPTH, SUMS], 0.0, tiles.dtype, B)
    for n in gl.static_range(NUMBER):
        tiles.index(n).store(zero + (column == n).to(tiles.dtype)[None, :])
    return tiles


@gluon.jit
def load_bias(bias_ptr, first, h, H: gl.constexpr, BLOCK_H: gl.constexpr):
    """Load the up bias of one block of hidden channels."""
    if H % BLOCK_H == 0:
        return gl.load(bias_ptr + first + h)
    else:
        return gl.load(bias_ptr + first + h, mask=first + h < H, other=0.0)


@gluon.jit
def relu(x):
    """ReLU and conversion to bfloat16, two elements an instruction."""
    return gl.inline_asm_elementwise(
        "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], gl.bfloat16, True, 2
    )


@gluon.jit
def piece_row(row, h, H: gl.constexpr):
    """First row of the piece of 64 rows and 64 hidden channels, in a matrix of 64 columns.

    The hidden channels' gradient is stored in such pieces: each is 8 KB of contiguous memory and
    one TMA copy. The pieces of the same 64 rows follow each other; their number is even.
    """
    PIECES: gl.constexpr = (H + 2 * DEPTH - 1) // (2 * DEPTH) * 2
    return row * PIECES + h
