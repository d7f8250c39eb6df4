"""What all kernels for Hopper GPUs share; they are in Gluon, the level below Triton."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROWS = gl.constexpr(64)
"""Of a warp group."""

REGISTERS = gl.constexpr(504)
"""Of three threads, one of each warp group and one of the loader, of which a program has 128."""


@gluon.constexpr_function
def mma_layout(columns):
    """Of a tile of 64 rows, as the four warps of a group hold what tensor cores give them."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16]
    )


@gluon.jit
def widen(x):
    """bfloat16 to float32, one instruction an element (the compiler's own takes two)."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=f,=f,r", [x], gl.float32, True, 2
    )


@gluon.constexpr_function
def part_width(columns):
    """Wide rows are normalised by parts of so many channels, for want of registers."""
    return columns if columns < 256 else 64


@gluon.jit
def row_statistics(tile, C: gl.constexpr, BLOCK_C: gl.constexpr, EPS: gl.constexpr):
    """Mean and 1 / standard deviation of a tile's rows."""
    WIDTH: gl.constexpr = part_width(BLOCK_C)
    L: gl.constexpr = mma_layout(WIDTH)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, L))
    total = gl.full([ROWS, WIDTH], 0.0, gl.float32, L)
    for part in gl.static_range(BLOCK_C // WIDTH):
        total += widen(tile.slice(part * WIDTH, WIDTH, dim=1).load(L))
    mean = gl.sum(total, 1) * (1.0 / C)
    total = gl.full([ROWS, WIDTH], 0.0, gl.float32, L)
    for part in gl.static_range(BLOCK_C // WIDTH):
        centred = widen(tile.slice(part * WIDTH, WIDTH, dim=1).load(L)) - mean[:, None]
        if C < BLOCK_C:
            centred = gl.where((part * WIDTH + column < C)[None, :], centred, 0.0)
        total += centred * centred
    variance = gl.sum(total, 1)
    return mean, gl.rsqrt(variance * (1.0 / C) + EPS)


@gluon.jit
def normalise(tile, weight, bias, C: gl.constexpr, BLOCK_C: gl.constexpr, EPS: gl.constexpr):
    """LayerNorm of a tile's rows in its place; returns their mean and 1 / standard deviation."""
    WIDTH: gl.constexpr = part_width(BLOCK_C)
    L: gl.constexpr = mma_layout(WIDTH)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, L))
    mean, rstd = row_statistics(tile, C, BLOCK_C, EPS)
    for part in gl.static_range(BLOCK_C // WIDTH):
        c = part * WIDTH + column
        piece = tile.slice(part * WIDTH, WIDTH, dim=1)
        x_hat = (widen(piece.load(L)) - mean[:, None]) * rstd[:, None]
        # Both are 0 beyond C.
        scale = gl.load(weight + c, mask=c < C, other=0.0).to(gl.float32)
        shift = gl.load(bias + c, mask=c < C, other=0.0).to(gl.float32)
        piece.store((x_hat * scale[None, :] + shift[None, :]).to(tile.dtype))
    return mean, rstd


@gluon.jit
def columns(x, WIDTH: gl.constexpr):
    """A tile's columns by parts of so many."""
    if x.shape[1] > WIDTH:
        L: gl.constexpr = mma_layout(x.shape[1] // 2)
        left, right = gl.split(x.reshape([ROWS, 2, x.shape[1] // 2]).permute((0, 2, 1)))
        return columns(gl.convert_layout(left, L), WIDTH) + columns(
            gl.convert_layout(right, L), WIDTH
        )
    else:  # noqa: RET505 (of constants)
        return (x,)
