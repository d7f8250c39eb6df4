"""What the kernels for Hopper GPUs share.

They are written in Gluon, Triton's lower level: a loader warp brings tiles to shared memory by the
bulk copy engine (TMA) and announces them on barriers, warp groups compute. Both follow the rows in
the same order, the loader ahead by as much as shared memory holds. A program keeps its tile of the
bias in shared memory for all its rows.

Layouts: ``S`` of logits, ``O`` of sums over keys or queries (both as the tensor cores leave them),
``A`` and ``A_P`` of their left operands in registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LOG2E = gl.constexpr(1.4426950408889634)
MASKED_LOGIT = gl.constexpr(-1e9)

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
def reciprocal(x):
    """To one unit in the last place; a true division takes eight instructions."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def row_max(x):
    """Maximum of each row in two chains, since the compiler keeps the order of a reduction."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    rows: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    even, odd = gl.split(gl.reshape(x, [M, N // 2, 2]))
    return gl.convert_layout(gl.max(gl.maximum(even, odd), 1), rows)


@gluon.jit
def row_sum(x):
    """Sum of each row; see `row_max`."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    rows: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    even, odd = gl.split(gl.reshape(x, [M, N // 2, 2]))
    return gl.convert_layout(gl.sum(even + odd, 1), rows)
