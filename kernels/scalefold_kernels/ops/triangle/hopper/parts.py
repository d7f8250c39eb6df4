"""What the triangle's kernels for Hopper GPUs share.

A CTA stays for many tiles of 64 positions. Each warp group, of one CTA or of several that share an
SM, works on a tile of its own, so that one multiplies while another normalises. Tensors with
positions last are transposed on the way between shared memory and registers (``ldmatrix`` and
``stmatrix`` do it). The four threads of a quad hold a position's channels.
"""

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels import smem
from scalefold_kernels.compiler import async_load
from scalefold_kernels.gluon import ROWS
from scalefold_kernels.gpu import SM_REGISTERS, num_sms
from scalefold_kernels.ops.norm.triton import EPS
from scalefold_kernels.ops.triangle.arguments import Sizes
from scalefold_kernels.ops.triangle.triton.parts import SIGMOID
from scalefold_kernels.tma import tiles_of, within_reach

GROUPS = gl.constexpr(2)
"""Warp groups that compute, each with tiles of its own."""

LOG2E = gl.constexpr(1.4426950408889634)

GROUP_REGISTERS = 232
"""Registers of a thread of the warp groups that compute, where a CTA has an SM for itself."""

LOADER_REGISTERS = gl.constexpr(40)
"""Registers of the loader's thread; the groups that compute get those that it gives up."""

THREADS = 256
"""Threads of a CTA with one warp group that computes; its loader counts as a whole group."""


@gluon.jit
def first_position(i, w):
    """First position of the tile number ``i`` of a warp group."""
    return ((i * GROUPS + w) * gl.num_programs(0) + gl.program_id(0)) * ROWS


@gluon.jit
def num_rounds(num_positions):
    """Tiles of a warp group, of which the last may be beyond the end."""
    return gl.cdiv(gl.cdiv(num_positions, ROWS), gl.num_programs(0) * GROUPS)


@gluon.jit
def load_rows(desc, first, ready, slots):
    """Start the copies of all channels of a tile, 64 to each slot; ``ready`` is for them alone."""
    PARTS: gl.constexpr = slots.shape[0]
    mbarrier.expect(ready, PARTS * smem.tile_bytes(desc))
    for part in gl.static_range(PARTS):
        async_load(desc, [first, part * 64], ready, slots.index(part))


@gluon.jit
def load_weight(desc, ready, slots):
    """Start the copies of a weight, 64 rows to each slot; ``ready`` is for them alone."""
    PARTS: gl.constexpr = slots.shape[0]
    mbarrier.expect(ready, PARTS * smem.tile_bytes(desc))
    for part in gl.static_range(PARTS):
        async_load(desc, [part * 64, 0], ready, slots.index(part))


@gluon.jit
def sigmoid(x):
    """By `SIGMOID`."""
    return gl.inline_asm_elementwise(SIGMOID, "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def open_gate(logit, bias, inverse_mask):
    """``sigmoid(logit + bias) * mask``, two instructions beside the two special functions.

    bias : of a column, times -log2 e
    inverse_mask : of a row, see `invert_mask`
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .f32 t;
        fma.rn.f32 t, $1, 0fBFB8AA3B, $2;
        ex2.approx.ftz.f32 t, t;
        fma.rn.f32 t, t, $3, $3;
        rcp.approx.ftz.f32 $0, t;
        }""",
        "=f,f,f,f", [logit, bias, inverse_mask], gl.float32, True, 1,
    )  # fmt: skip


@gluon.jit
def invert_mask(mask):
    """1 / mask; for 0 so large a number that the inverse of it or of more is flushed to 0."""
    return gl.where(mask == 0, 3.0e38, 1.0 / mask)


@gluon.jit
def row_sum(x):
    """Sum of each row in two chains, since the compiler keeps the order of a reduction."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    rows: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    even, odd = gl.split(gl.reshape(x, [M, N // 2, 2]))
    return gl.convert_layout(gl.sum(even + odd, 1), rows)


@gluon.jit
def opaque(x):
    """The number x, unknown to the compiler: what is computed from it stays where it is.

    Else addresses, descriptors and hashes would be computed before a loop, and spill.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], gl.int32, False, 1)


@gluon.jit
def load_column(ptr, first, num_positions, LAYOUT: gl.constexpr):
    """Numbers of the positions ``first`` and following of a tile of this layout.

    Beyond the end they are the last one's: what TMA brings from there is 0 in any case.
    """
    position = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    return gl.load(ptr + gl.minimum(position, opaque(num_positions) - 1)).to(gl.float32)


@gluon.jit
def load_raw_row(ptr, LAYOUT: gl.constexpr):
    """A vector as a row beside tiles of this layout, which has as many columns; in its own type."""
    SIZE: gl.constexpr = LAYOUT.instr_shape[1]
    index = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LAYOUT))
    return gl.load(ptr + index)[None, :]


@gluon.jit
def load_row(ptr, LAYOUT: gl.constexpr):
    """Same as `load_raw_row`, in float32."""
    return load_raw_row(ptr, LAYOUT).to(gl.float32)


@gluon.jit
def standardise(x):
    """Rows of zero mean and unit variance; mean; 1 / standard deviation."""
    CHANNELS: gl.constexpr = x.shape[1]
    mean = row_sum(x) * (1.0 / CHANNELS)
    centred = x - mean[:, None]
    variance = row_sum(centred * centred) * (1.0 / CHANNELS)
    rstd = 1.0 / gl.sqrt_rn(variance + EPS)
    return centred * rstd[:, None], mean, rstd


@gluon.jit
def normalised(x, first, cta):
    """Rows of a tile after LayerNorm; their statistics are stored."""
    WHOLE: gl.constexpr = x.type.layout
    x_hat, mean, rstd = standardise(x)
    position = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, WHOLE))
    gl.store(cta.mean_ptr + position, mean, mask=position < cta.num_positions)
    gl.store(cta.rstd_ptr + position, rstd, mask=position < cta.num_positions)
    return x_hat * load_row(cta.norm_weight_ptr, WHOLE) + load_row(cta.norm_bias_ptr, WHOLE)


def num_ctas(sizes: Sizes, x: Tensor) -> int:
    """One CTA for each SM, or fewer where some would have nothing to do."""
    return min(num_sms(x.device), triton.cdiv(sizes.positions, ROWS.value * GROUPS.value))


def sharing(sizes: Sizes, x: Tensor, number: int) -> tuple[int, int, int]:
    """CTAs, of which ``number`` share an SM; tiles; registers of a thread."""
    num_tiles = triton.cdiv(sizes.positions, ROWS.value)
    registers = SM_REGISTERS // (number * THREADS) // 8 * 8
    return min(number * num_sms(x.device), num_tiles), num_tiles, registers


def row_tiles(x: Tensor, width: int | None = None) -> TensorDescriptor:
    """Tiles (positions, channels) of a contiguous tensor, channels last."""
    channels = x.shape[-1]
    return tiles_of(within_reach(x.view(-1, channels)), ROWS.value, width or channels)


def column_tiles(x: Tensor, height: int) -> TensorDescriptor:
    """Tiles (channels, positions) of a contiguous tensor, positions last."""
    return tiles_of(within_reach(x.view(x.shape[0], -1)), height, ROWS.value)


def weight_tiles(weight: Tensor) -> TensorDescriptor:
    """Rows of a weight, 64 at a time."""
    return tiles_of(within_reach(weight), 64, weight.shape[1])
