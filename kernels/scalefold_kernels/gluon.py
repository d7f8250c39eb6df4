"""The vocabulary of all kernels for Hopper GPUs, in Gluon; `docs/kernels.md` explains it.

A kernel that divides its warps makes a record `Cta` of what they share: tensors, rings, barriers,
sizes, constants. It passes the record directly to what starts the warps, mostly `one_group` or
`two_groups`. In a variable, its constants would become numbers in registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

ROWS = gl.constexpr(64)
"""Rows of a warp group's tile."""

REGISTERS = gl.constexpr(504)
"""Registers to divide among one thread of each partition: two groups and the loader.

Triton pads each of the three to 128 threads. An SM's 65,536 registers for 384 threads are 170 each,
168 in the multiples of 8 that the hardware takes: 504 for three.
"""


@gluon.constexpr_function
def mma_layout(columns):
    """Layout in which the four warps of a group hold a product's tile of 64 rows."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16]
    )


@gluon.jit
def zeros(M: gl.constexpr, N: gl.constexpr):
    """A product's accumulator before the first product."""
    return gl.full([M, N], 0.0, gl.float32, mma_layout(N))


@gluon.jit
def _compute(w, cta, compute: gl.constexpr):
    compute(w, cta)


@gluon.jit
def _call(cta, function: gl.constexpr):
    function(cta)


@gluon.jit
def one_group(cta, compute: gl.constexpr, load: gl.constexpr, LOADER_REGISTERS: gl.constexpr):
    """Divide a CTA: ``compute(cta)`` in a warp group, ``load(cta)`` in a warp."""
    fence_async_shared()
    gl.warp_specialize([(_call, (cta, compute)), (_call, (cta, load))], [1], [LOADER_REGISTERS])


@gluon.jit
def two_groups(
    cta, compute: gl.constexpr, load: gl.constexpr, GROUP_REGISTERS: gl.constexpr, first=0, second=1
):  # fmt: skip
    """Divide a CTA: ``compute(w, cta)`` in two warp groups, ``load(cta)`` in a warp.

    ``first`` and ``second`` are their w: constants where ``compute`` takes a ``gl.constexpr``, as
    it must to branch or slice by w; else numbers in registers (``gl.to_tensor``), with which those
    kernels were measured.
    """
    fence_async_shared()
    gl.warp_specialize(
        [
            (_compute, (first, cta, compute)),
            (_compute, (second, cta, compute)),
            (_call, (cta, load)),
        ],
        [4, 1],
        [GROUP_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS],
    )


@gluon.jit
def unsigned(x):
    """Cast a number that is not negative to an unsigned type: divisions take half as long."""
    x = gl.to_tensor(x)
    if x.dtype == gl.int64:
        return x.to(gl.uint64)
    else:  # noqa: RET505 (of constants)
        return x.to(gl.uint32)


@gluon.jit
def opaque_zero(i, BITS: gl.constexpr = 28):
    """Return a 0 that the compiler cannot predict, from a loop's counter 0 <= ``i`` < 2^``BITS``.

    The compiler moves what is the same in all iterations, such as addresses, out of the loop. There
    it would stay live across the loop, in registers that these kernels lack. With this zero added,
    it is computed where it is used.

    A CTA's rows, tiles and slots are fewer than 2^28: more would not fit in memory.
    """
    return i >> BITS


@gluon.jit
def product_int64(x, y):
    """Product of nonnegative numbers in 64 bits; signs would stay in registers across loops."""
    return unsigned(x).to(gl.uint64) * unsigned(y).to(gl.uint64)


@gluon.jit
def widen(x):
    """Convert bfloat16 to float32, one instruction an element (the compiler's own takes two)."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=f,=f,r", [x], gl.float32, True, 2
    )


@gluon.jit
def columns(x, WIDTH: gl.constexpr):
    """Split a tile into parts of ``WIDTH`` columns."""
    if x.shape[1] > WIDTH:
        L: gl.constexpr = mma_layout(x.shape[1] // 2)
        left, right = gl.split(x.reshape([ROWS, 2, x.shape[1] // 2]).permute((0, 2, 1)))
        return columns(gl.convert_layout(left, L), WIDTH) + columns(
            gl.convert_layout(right, L), WIDTH
        )
    else:  # noqa: RET505 (of constants)
        return (x,)
