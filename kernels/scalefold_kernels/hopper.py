"""What all kernels for Hopper GPUs share; they are in Gluon, the level below Triton."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


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
