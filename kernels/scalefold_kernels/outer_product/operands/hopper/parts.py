"""What forward and backward of the operands share on Hopper GPUs, in Gluon, below Triton.

A program stays for many tiles: 128 sequences of one residue, 64 for each of two warp groups. A
loader warp brings their rows by TMA. Beyond the last sequence, channel and hidden
channel it reads zeros and writes nothing.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from scalefold_kernels.gluon import ROWS

BLOCK_C = gl.constexpr(32)
"""Hidden channels of an operand."""

PART = gl.constexpr(64)
"""Channels of the rows that are worked on at a time, for want of registers."""


@gluon.jit
def place(tile, sizes):
    """Sample, residue and first sequence of a tile."""
    size_s, size_n, _ = sizes
    blocks = (size_s + 2 * ROWS - 1) // (2 * ROWS)
    rest = tile // blocks
    return rest // size_n, rest % size_n, tile % blocks * 2 * ROWS


@gluon.constexpr_function
def weight_layout(columns):
    """Of rows of a weight, as they are read from memory: 16 bytes a thread."""
    vectors = min(32, columns // 8)
    return gl.BlockedLayout([1, 8], [32 // vectors, vectors], [4, 1], [1, 0])


@gluon.jit
def load_mask(mask, strides, sample, s, residue, sizes, L: gl.constexpr):
    """Of a group's sequences."""
    s += gl.arange(0, ROWS, layout=L)
    at = mask + sample.to(gl.int64) * strides[0] + s.to(gl.int64) * strides[1]
    return gl.load(at + residue.to(gl.int64) * strides[2], mask=s < sizes[0], other=0.0)
