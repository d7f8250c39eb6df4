"""What the kernels for Hopper GPUs share.

They are written in Gluon, Triton's lower level. A program stays for many tiles of 64 positions: a
loader warp brings them to shared memory by the bulk copy engine (TMA) and announces them on
barriers; each warp group works on a tile of its own, so that one multiplies while another
normalises, and results leave through shared memory by the copy engine. Weights are brought once.

Tensors with positions last are turned by the way between shared memory and registers
(``ldmatrix`` and ``stmatrix`` transpose). A position's channels lie in the four threads of a quad.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TILE = gl.constexpr(64)
"""Positions of a tile: the rows of a warp group's matrix product."""

LOADER_REGISTERS = gl.constexpr(40)
"""Of a thread of the loader; what it gives up goes to the warp groups that compute."""


@gluon.constexpr_function
def mma_layout(columns):
    """Of a tile of 64 rows, as four warps hold it."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16]
    )


@gluon.jit
def widen(x):
    """bfloat16 to float32, one instruction an element (the compiler's own takes two)."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=f,=f,r", [x], gl.float32, True, 2
    )


@gluon.jit
def sigmoid(x):
    """As that of `scalefold_kernels.triangle.kernel`."""
    return gl.inline_asm_elementwise(
        """{
        .reg .f32 t;
        mul.f32 t, $1, 0fBFB8AA3B;
        ex2.approx.ftz.f32 t, t;
        add.f32 t, t, 0f3F800000;
        rcp.approx.ftz.f32 $0, t;
        }""",
        "=f,f",
        [x],
        gl.float32,
        True,
        1,
    )


@gluon.jit
def row_sum(x):
    """Sum of each row in two chains, since the compiler keeps the order of a reduction."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    rows: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    even, odd = gl.split(gl.reshape(x, [M, N // 2, 2]))
    return gl.convert_layout(gl.sum(even + odd, 1), rows)


@gluon.jit
def opaque_zero():
    """0, of which the compiler does not know: an address with it is not kept over a loop.

    Addresses and descriptors of all weights, computed once before the loop, would spill.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [0], gl.int32, False, 1)


@gluon.jit
def columns(pointer, LAYOUT: gl.constexpr):
    """A vector as a row beside tiles of this layout, which has as many columns."""
    SIZE: gl.constexpr = LAYOUT.instr_shape[1]
    index = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LAYOUT))
    return gl.load(pointer + index).to(gl.float32)[None, :]


@gluon.jit
def standardise(x, eps):
    """Rows of zero mean and unit variance; mean; reciprocal deviation."""
    CHANNELS: gl.constexpr = x.shape[1]
    mean = row_sum(x) * (1.0 / CHANNELS)
    centred = x - mean[:, None]
    variance = row_sum(centred * centred) * (1.0 / CHANNELS)
    reciprocal = 1.0 / gl.sqrt_rn(variance + eps)
    return centred * reciprocal[:, None], mean, reciprocal


@gluon.jit
def kept(dropped, position, ROWS, COLUMNS, C: gl.constexpr):
    """What dropout multiplies a tile of an update with; ``dropped`` as `..sizes.DroppedOut`."""
    keep, keep_b, keep_i, keep_j, keep_z, factor = dropped
    j = position % COLUMNS
    i = position // COLUMNS % ROWS
    sample = position // COLUMNS // ROWS
    row = keep + sample.to(gl.int64) * keep_b + i.to(gl.int64) * keep_i + j * keep_j
    channel = gl.arange(0, C, layout=gl.SliceLayout(0, mma_layout(C)))
    return gl.load(row[:, None] + channel[None, :] * keep_z).to(gl.float32) * factor
