"""Third kernel of the backward: sums over rows, for both weights' gradients; see `parts`.

``raw = grad_hidden^T x_hat`` and ``down = hidden^T grad``, both (H, C), in one launch: a program
has 128 hidden channels of one of them and a part of the rows. The sums of ``grad_hidden`` are a
product with ones beside the first.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from scalefold_kernels.hopper import REGISTERS, ROWS, mma_layout
from scalefold_kernels.transition.hopper.parts import DEPTH

ONES = gl.constexpr(16)
"""Columns of ones, the fewest that are a tile."""


@gluon.jit
def load(args, BLOCK_C: gl.constexpr, STAGES: gl.constexpr):
    """The loader warp."""
    (
        grad_hidden_desc, x_hat_desc, hidden_desc, grad_desc, left, right, full, empty,
        num_rows, rows_per_part,
    ) = args  # fmt: skip
    start = gl.program_id(1) * rows_per_part
    i = gl.to_tensor(0)
    for row in range(start, gl.minimum(start + rows_per_part, num_rows), DEPTH):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(slot), (2 * ROWS + BLOCK_C) * DEPTH * 2)
        if gl.program_id(2) == 0:
            load_rows(grad_hidden_desc, x_hat_desc, row, left, right, full, slot)
        else:
            load_rows(hidden_desc, grad_desc, row, left, right, full, slot)
        i += 1


@gluon.jit
def load_rows(left_desc, right_desc, row, left, right, full, slot):
    """Some rows of both operands; of the left one, the hidden channels of each group."""
    for w in gl.static_range(2):
        at = [row, (2 * gl.program_id(0) + w) * ROWS]
        tma.async_copy_global_to_shared(left_desc, at, full.index(slot), left.index(2 * slot + w))
    tma.async_copy_global_to_shared(right_desc, [row, 0], full.index(slot), right.index(slot))


@gluon.jit
def multiply(
    product, total, left, right, ones, full, empty, i,
    w: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Add the products of the ring's next slots, and the sums; returns the next i, too.

    Not one for all rows: across iterations, ptxas (12.8) would wait after each step.
    """
    for step in gl.static_range(STEPS):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), (i // STAGES) & 1)
        channels = left.index(2 * slot + w).permute((1, 0))
        total = warpgroup_mma(channels, ones, total, is_async=True)
        product = warpgroup_mma(channels, right.index(slot), product, is_async=True)
        if step > 0:
            product, total = warpgroup_mma_wait(2, [product, total])
            mbarrier.arrive(empty.index((i - 1) % STAGES))
        i += 1
    product, total = warpgroup_mma_wait(0, [product, total])
    mbarrier.arrive(empty.index((i - 1) % STAGES))
    return product, total, i


@gluon.jit
def compute(
    w: gl.constexpr, args,
    C: gl.constexpr, H: gl.constexpr,
    BLOCK_C: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    out, sums, left, right, ones, full, empty, num_rows, rows_per_part = args
    L: gl.constexpr = mma_layout(BLOCK_C)
    S: gl.constexpr = mma_layout(ONES)
    start = gl.program_id(1) * rows_per_part
    steps = (gl.minimum(start + rows_per_part, num_rows) - start + DEPTH - 1) // DEPTH
    product = gl.full([ROWS, BLOCK_C], 0.0, gl.float32, L)
    total = gl.full([ROWS, ONES], 0.0, gl.float32, S)
    i = gl.to_tensor(0)
    for _ in range(steps // UNROLL):
        product, total, i = multiply(
            product, total, left, right, ones, full, empty, i, w, UNROLL, STAGES
        )
    for _ in range(steps % UNROLL):
        product, total, i = multiply(
            product, total, left, right, ones, full, empty, i, w, 1, STAGES
        )
    part = gl.program_id(2) * gl.num_programs(1) + gl.program_id(1)
    first = (2 * gl.program_id(0) + w) * ROWS
    h = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, BLOCK_C, layout=gl.SliceLayout(0, L))
    at = (part.to(gl.int64) * H + h)[:, None] * C + c[None, :]
    gl.store(out + at, product, mask=(h < H)[:, None] & (c < C)[None, :])
    if gl.program_id(2) == 0:
        channel = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
        one = gl.arange(0, ONES, layout=gl.SliceLayout(0, S))
        pointers = sums + (part * H + channel)[:, None] + one[None, :]
        gl.store(pointers, total, mask=(channel < H)[:, None] & (one == 0)[None, :])


@gluon.jit
def weight_gradients_kernel(
    grad_hidden_desc, x_hat_desc, hidden_desc, grad_desc, out, sums, num_rows, rows_per_part,
    C: gl.constexpr, H: gl.constexpr,
    BLOCK_C: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``out`` (2, parts, H, C), ``sums`` (parts, H), over a part's rows each."""
    dtype: gl.constexpr = x_hat_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    left = gl.allocate_shared_memory(dtype, [2 * STAGES, DEPTH, ROWS], grad_hidden_desc.layout)
    right = gl.allocate_shared_memory(dtype, [STAGES, DEPTH, BLOCK_C], x_hat_desc.layout)
    ones_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([DEPTH, ONES], dtype)
    ones = gl.allocate_shared_memory(dtype, [DEPTH, ONES], ones_layout)
    ones.store(
        gl.full([DEPTH, ONES], 1.0, dtype, gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0]))
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), 1)
        mbarrier.init(empty.index(slot), 2)
    fence_async_shared()
    rows, per_part = gl.to_tensor(num_rows), gl.to_tensor(rows_per_part)
    load_args = (
        grad_hidden_desc, x_hat_desc, hidden_desc, grad_desc, left, right, full, empty,
        rows, per_part,
    )  # fmt: skip
    args = out, sums, left, right, ones, full, empty, rows, per_part
    gl.warp_specialize(
        [
            (compute, (0, args, C, H, BLOCK_C, STAGES, UNROLL)),
            (compute, (1, args, C, H, BLOCK_C, STAGES, UNROLL)),
            (load, (load_args, BLOCK_C, STAGES)),
        ],
        [4, 1],
        [GROUP_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS],
    )
