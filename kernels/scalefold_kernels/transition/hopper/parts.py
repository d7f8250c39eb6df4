"""What forward and backward share on Hopper GPUs.

A program stays for many tiles of 128 rows. A loader warp brings rows and weights by the copy engine
(TMA) and announces them on barriers; two warp groups have 64 rows each, on the chip from the first
product to the result, and walk along the hidden channels. The weights pass by in blocks that both
groups use, a few ahead; the groups drift apart, so that one multiplies while the other applies
bias and ReLU.

Beyond the last row, channel and hidden channel the copy engine reads zeros and writes nothing.

Legend: C channels, H hidden channels; BLOCK_C, BLOCK_H their blocks in shared memory (all of C).
``up`` is (H, C), ``down`` (C, H).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma

from scalefold_kernels.hopper import ROWS, mma_layout

DEPTH = gl.constexpr(64)
"""Of the pieces in which long products are made: a row of them is a swizzled unit, 128 bytes."""


@gluon.jit
def load_weights(
    up_desc, down_desc, up_smem, down_smem, up_full, up_empty, down_full, down_empty, i,
    C: gl.constexpr, H: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr,
    UP_STAGES: gl.constexpr, DOWN_STAGES: gl.constexpr,
):  # fmt: skip
    """All weights once, the first of them the ``i``-th of the program; returns the next i."""
    for first in range(0, H, BLOCK_H):
        slot = i % UP_STAGES
        mbarrier.wait(up_empty.index(slot), ((i // UP_STAGES) & 1) ^ 1)
        mbarrier.expect(up_full.index(slot), BLOCK_H * BLOCK_C * 2)
        tma.async_copy_global_to_shared(
            up_desc, [first, 0], up_full.index(slot), up_smem.index(slot)
        )
        slot = i % DOWN_STAGES
        mbarrier.wait(down_empty.index(slot), ((i // DOWN_STAGES) & 1) ^ 1)
        mbarrier.expect(down_full.index(slot), BLOCK_H * BLOCK_C * 2)
        tma.async_copy_global_to_shared(
            down_desc, [0, first], down_full.index(slot), down_smem.index(slot)
        )
        i += 1
    return i


@gluon.jit
def load_bias(bias, first, h, H: gl.constexpr, BLOCK_H: gl.constexpr):
    """Of a block of hidden channels."""
    if H % BLOCK_H == 0:
        return gl.load(bias + first + h)
    else:
        return gl.load(bias + first + h, mask=first + h < H, other=0.0)


@gluon.jit
def relu(x):
    """To bfloat16, two elements an instruction."""
    return gl.inline_asm_elementwise(
        "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], gl.bfloat16, True, 2
    )


@gluon.jit
def relu_backward(grad, out):
    """``grad`` to bfloat16, and 0 where ``out`` of the ReLU is."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 g, m, zero;
        mov.b32 zero, 0;
        cvt.rn.bf16x2.f32 g, $2, $1;
        set.gt.bf16x2.bf16x2 m, $3, zero;
        mul.rn.bf16x2 $0, g, m;
        }""",
        "=r,f,f,r",
        [grad, out],
        gl.bfloat16,
        True,
        2,
    )


@gluon.jit
def sum_rows(tile, COLUMNS: gl.constexpr):
    """Start the sum of a tile over its rows, in each row of the result: a product with ones.

    Shuffles between threads and warps take longer than these idle tensor cores.
    """
    L: gl.constexpr = mma_layout(COLUMNS)
    ones = gl.full([ROWS, ROWS], 1.0, tile.dtype, gl.DotOperandLayout(0, L, 2))
    zero = gl.full([ROWS, COLUMNS], 0.0, gl.float32, L)
    return warpgroup_mma(ones, tile, zero, use_acc=False, is_async=True)


@gluon.jit
def write_first_row(x, out, N: gl.constexpr):
    """The first N elements of a tile's first row, to memory."""
    L: gl.constexpr = x.type.layout
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))[:, None]
    column = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, L))[None, :]
    gl.store(out + column + row, x, mask=(row == 0) & (column < N))


@gluon.jit
def columns(x, WIDTH: gl.constexpr):
    """A tile's columns by parts of so many."""
    if x.shape[1] > WIDTH:
        L: gl.constexpr = mma_layout(x.shape[1] // 2)
        left, right = gl.split(x.reshape([ROWS, 2, x.shape[1] // 2]).permute((0, 2, 1)))
        return columns(gl.convert_layout(left, L), WIDTH) + columns(
            gl.convert_layout(right, L), WIDTH
        )
    else:
        return (x,)


@gluon.jit
def skip(full, empty, i, STAGES: gl.constexpr):
    """Give back a slot that the other group uses, not before it is full; returns i + 1."""
    slot = i % STAGES
    mbarrier.wait(full.index(slot), (i // STAGES) & 1)
    mbarrier.arrive(empty.index(slot))
    return i + 1
