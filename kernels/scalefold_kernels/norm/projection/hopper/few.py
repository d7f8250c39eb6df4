"""Forward of a normalised projection of few outputs on Hopper GPUs: a warp has 16 rows.

A thread loads eight channels at a time, as long a piece as there is, and hands them to the tensor
cores as if they were those that these expect of it: the order of the channels makes no difference
where the weights have the same. So nothing of a row passes through shared memory.

Legend: as `norm.projection.kernel`; all outputs lie aside.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mma_v2

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.norm.projection.hopper.forward import standardise


@gluon.constexpr_function
def row_layout(channels):
    """Of 64 rows: four threads have a row and the one eight below, eight channels at a time."""
    registers = [[0, 1], [0, 2], [0, 4], [8, 0]]
    registers += [[0, 32 << i] for i in range((channels // 32).bit_length() - 1)]
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, channels])


@gluon.jit
def channel_of(k):
    """Which channel a thread of `row_layout` has where the tensor cores expect the ``k``-th."""
    return k // 32 * 32 + k // 2 % 4 * 8 + k // 16 % 2 * 4 + k // 8 % 2 * 2 + k % 2


@gluon.jit
def to_operand(x, L: gl.constexpr):
    """Rows as the left operand of a product, their channels in the order of `channel_of`."""
    BLOCKS: gl.constexpr = x.shape[1] // 32
    x = x.reshape([ROWS, BLOCKS, 4, 2, 2, 2]).permute((0, 1, 3, 4, 2, 5))
    return gl.convert_layout(x.reshape([ROWS, BLOCKS * 32]), L)


@gluon.jit
def projection_forward_few_kernel(
    x, x_stride, norm_weight, norm_bias, weight, aside_scale, aside, stats, num_rows, sample_rows,
    C: gl.constexpr, S: gl.constexpr, EPS: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_S: gl.constexpr,
):  # fmt: skip
    """``aside = layer_norm(x) @ weight.T * aside_scale``, (B, S, sample_rows), of 64 rows."""
    L: gl.constexpr = row_layout(BLOCK_C)
    OUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, OUT, 2)
    first = gl.program_id(0) * ROWS
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, BLOCK_C, layout=gl.SliceLayout(0, L))
    at = (row.to(gl.int64) * x_stride)[:, None] + c[None, :]
    inside = (row < num_rows)[:, None] & (c < C)[None, :]
    rows = gl.load(x + at, mask=inside, other=0.0)
    # Both are 0 beyond C.
    scale = gl.load(norm_weight + c, mask=c < C, other=0.0).to(gl.float32)
    shift = gl.load(norm_bias + c, mask=c < C, other=0.0).to(gl.float32)
    k = channel_of(gl.arange(0, BLOCK_C, layout=gl.SliceLayout(1, RIGHT)))
    s = gl.arange(0, BLOCK_S, layout=gl.SliceLayout(0, RIGHT))
    inside = (k < C)[:, None] & (s < S)[None, :]
    few_weight = gl.load(weight + s[None, :] * C + k[:, None], mask=inside, other=0.0)
    x_hat, mean, rstd = standardise(rows, C, EPS)
    gl.store(stats + row, mean, mask=row < num_rows)
    gl.store(stats + num_rows + row, rstd, mask=row < num_rows)
    normed = (x_hat * scale[None, :] + shift[None, :]).to(x.dtype.element_ty)
    zero = gl.full([ROWS, BLOCK_S], 0.0, gl.float32, OUT)
    few = mma_v2(to_operand(normed, LEFT), few_weight, zero) * aside_scale
    r = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, OUT))
    s = gl.arange(0, BLOCK_S, layout=gl.SliceLayout(0, OUT))
    # Of row r of a sample: the sample's outputs begin at its first row times S.
    within = r % sample_rows
    at = (r - within).to(gl.int64)[:, None] * S + s[None, :] * sample_rows
    inside = (r < num_rows)[:, None] & (s < S)[None, :]
    gl.store(aside + at + within[:, None], few.to(aside.dtype.element_ty), mask=inside)
