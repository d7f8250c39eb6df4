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
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from scalefold_kernels.hopper import mma_layout, widen

ROWS = gl.constexpr(64)
"""Of a warp group."""

REGISTERS = gl.constexpr(504)
"""Of three threads, one of each warp group and one of the loader, of which a program has 128."""


@gluon.constexpr_function
def part_width(columns):
    """Wide rows are worked on by parts of so many channels, for want of registers."""
    return columns if columns < 256 else 64


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
def normalise(tile, weight, bias, C: gl.constexpr, BLOCK_C: gl.constexpr, EPS: gl.constexpr):
    """LayerNorm of a tile's rows in its place; returns their mean and 1 / standard deviation."""
    WIDTH: gl.constexpr = part_width(BLOCK_C)
    L: gl.constexpr = mma_layout(WIDTH)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, L))
    mean = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, L))
    for part in gl.static_range(BLOCK_C // WIDTH):
        mean += gl.sum(widen(tile.slice(part * WIDTH, WIDTH, dim=1).load(L)), 1)
    mean *= 1.0 / C
    variance = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, L))
    for part in gl.static_range(BLOCK_C // WIDTH):
        centred = widen(tile.slice(part * WIDTH, WIDTH, dim=1).load(L)) - mean[:, None]
        if C < BLOCK_C:
            centred = gl.where((part * WIDTH + column < C)[None, :], centred, 0.0)
        variance += gl.sum(centred * centred, 1)
    rstd = gl.rsqrt(variance * (1.0 / C) + EPS)
    for part in gl.static_range(BLOCK_C // WIDTH):
        c = part * WIDTH + column
        piece = tile.slice(part * WIDTH, WIDTH, dim=1)
        x_hat = (widen(piece.load(L)) - mean[:, None]) * rstd[:, None]
        # Both are 0 beyond C.
        scale = gl.load(weight + c, mask=c < C, other=0.0).to(gl.float32)
        shift = gl.load(bias + c, mask=c < C, other=0.0).to(gl.float32)
        piece.store((x_hat * scale[None, :] + shift[None, :]).to(tile.dtype))
    return mean, rstd
