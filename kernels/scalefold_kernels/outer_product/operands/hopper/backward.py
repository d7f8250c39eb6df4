"""Backward of the operands on Hopper GPUs; see `parts`.

The loader brings the operands' gradients and m's gradient from elsewhere, too. A group standardises
its rows in their place. With ``W`` the weights times the norm's, the sums of LayerNorm's backward
follow from ``x_hat W^T``, 64 wide, before the gradient of x_hat is made, by parts of the channels.
A third group has the parameters' sums over all rows in registers.
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

from scalefold_kernels.gluon import ROWS, columns, mma_layout, row_statistics, widen
from scalefold_kernels.outer_product.operands.hopper.parts import (
    BLOCK_C,
    PART,
    load_mask,
    place,
    weight_layout,
)

MAX_HALF = gl.constexpr(128)
"""The most channels of a product."""

REGISTERS = gl.constexpr(512)
"""Of four threads, one of each warp group and one of the loader, of which a program has 128."""

ONES = gl.constexpr(8)
"""Columns of ones, the fewest that a product takes."""


@gluon.jit
def load(args, BLOCK_M: gl.constexpr, PLACES: gl.constexpr):
    """The loader warp."""
    (
        m_desc, grad_desc, through_desc, m_smem, grad_smem, through_smem,
        full, empty, through_full, through_empty, sizes, num_tiles,
    ) = args  # fmt: skip
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        sample, residue, first = place(tile, sizes)
        for w in gl.static_range(2):
            s = first + w * ROWS
            turn = 2 * n + w
            at = turn % PLACES
            mbarrier.wait(empty.index(at), ((turn // PLACES) & 1) ^ 1)
            mbarrier.expect(full.index(at), (BLOCK_M + 2 * BLOCK_C) * ROWS * 2)
            tma.async_copy_global_to_shared(
                m_desc, [sample, s, residue, 0], full.index(at), m_smem.index(at)
            )
            tma.async_copy_global_to_shared(
                grad_desc, [0, sample * sizes[1] + residue, 0, s], full.index(at),
                grad_smem.index(at),
            )  # fmt: skip
            mbarrier.wait(through_empty.index(w), (n & 1) ^ 1)
            mbarrier.expect(through_full.index(w), BLOCK_M * ROWS * 2)
            tma.async_copy_global_to_shared(
                through_desc, [sample, s, residue, 0], through_full.index(w), through_smem.index(w)
            )
        n += 1


@gluon.jit
def keep_weights(
    norm_weight, weights, weight_smem, sum_smem, size_c, M: gl.constexpr, BLOCK_M: gl.constexpr
):  # fmt: skip
    """Both weights times the norm's in shared memory, below each other; the sums of their rows."""
    L: gl.constexpr = weight_layout(BLOCK_M)
    column = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, L))
    c = gl.arange(0, BLOCK_C, layout=gl.SliceLayout(1, L))
    scale = gl.load(norm_weight + column, mask=column < M, other=0.0).to(gl.float32)
    inside = (c < size_c)[:, None] & (column < M)[None, :]
    for which in gl.static_range(2):
        weight = gl.load(weights[which] + c[:, None] * M + column[None, :], mask=inside, other=0.0)
        scaled = (weight.to(gl.float32) * scale[None, :]).to(weight_smem.dtype)
        weight_smem.slice(which * BLOCK_C, BLOCK_C, dim=0).store(scaled)
        sum_smem.slice(which * BLOCK_C, BLOCK_C).store(gl.sum(scaled.to(gl.float32), 1))


@gluon.jit
def standardise(tile, M: gl.constexpr, BLOCK_M: gl.constexpr, EPS: gl.constexpr):
    """Rows of mean 0 and variance 1 in their place; returns 1 / standard deviation."""
    parts = columns(tile.load(mma_layout(BLOCK_M)), PART)
    mean, rstd = row_statistics(parts, M, EPS)
    for part in gl.static_range(BLOCK_M // PART):
        x_hat = (widen(parts[part]) - mean[:, None]) * rstd[:, None]
        if M < BLOCK_M:
            column = gl.arange(0, PART, layout=gl.SliceLayout(0, mma_layout(PART)))
            x_hat = gl.where((part * PART + column < M)[None, :], x_hat, 0.0)
        tile.slice(part * PART, PART, dim=1).store(x_hat.to(tile.dtype))
    return rstd


@gluon.jit
def row_sums(inner, grad_tile, sum_smem):
    """Over a row's channels: of the gradient of x_hat, and of its product with x_hat."""
    L: gl.constexpr = inner.type.layout
    grad = widen(grad_tile.permute((1, 0)).load(L))
    return gl.sum(grad * sum_smem.load(gl.SliceLayout(0, L))[None, :], 1), gl.sum(grad * inner, 1)


@gluon.jit
def write_sums(sums, partial, first, row_stride, num_columns, M: gl.constexpr, size_c):
    """Some of a program's, as `kernel.backward_kernel` leaves them."""
    L: gl.constexpr = sums.type.layout
    column = gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, L))
    p = gl.arange(0, 2 * BLOCK_C, layout=gl.SliceLayout(1, L))
    c = p % BLOCK_C
    rows = partial + (gl.program_id(0) * 2 + p // BLOCK_C).to(gl.int64) * size_c * (M + 1)
    rows += first + c * row_stride
    inside = (c < size_c)[:, None] & (column < num_columns)[None, :]
    gl.store(rows[:, None] + column[None, :], sums, mask=inside)


@gluon.jit
def compute(
    w: gl.constexpr, args,
    M: gl.constexpr, BLOCK_M: gl.constexpr, EPS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        mask, out_desc, m_smem, grad_smem, through_smem, weight_smem, sum_smem,
        full, ready, empty, through_full, through_empty, sizes, mask_strides, num_tiles,
    ) = args  # fmt: skip
    GRAD: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])
    OUT: gl.constexpr = mma_layout(PART)
    zero = gl.full([ROWS, PART], 0.0, gl.float32, OUT)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        sample, residue, s = place(tile, sizes)
        s += w * ROWS
        turn = 2 * n + w
        at = turn % PLACES
        # A place that the compiler does not know to be the same in all iterations: it would keep
        # all addresses in it in registers.
        zeroth = n >> 28
        weight = weight_smem.index(zeroth)
        factor = load_mask(mask, mask_strides, sample, s, residue, sizes, gl.SliceLayout(0, GRAD))
        # The place's rows before, the other group's, are there: so the phase is this turn's.
        mbarrier.wait(ready.index(at), ((turn // PLACES) & 1) ^ 1)
        mbarrier.wait(full.index(at), (turn // PLACES) & 1)
        m_tile = m_smem.index(at).reshape([ROWS, BLOCK_M])
        grad_tile = grad_smem.index(at).reshape([2 * BLOCK_C, ROWS])
        grad_tile.store(grad_tile.load(GRAD) * factor.to(grad_tile.dtype)[None, :])
        rstd = standardise(m_tile, M, BLOCK_M, EPS)
        fence_async_shared()
        mbarrier.arrive(ready.index(at))
        inner = warpgroup_mma(m_tile, weight.permute((1, 0)), zero, use_acc=False)
        mean_grad, mean_product = row_sums(inner, grad_tile, sum_smem.index(zeroth))
        mean_grad *= 1.0 / M
        mean_product *= 1.0 / M
        mbarrier.wait(through_full.index(w), n & 1)
        out_tile = through_smem.index(w + zeroth).reshape([ROWS, BLOCK_M])
        others = columns(out_tile.load(mma_layout(BLOCK_M)), PART)
        for part in gl.static_range(BLOCK_M // PART):
            right = weight.slice(part * PART, PART, dim=1)
            grad = warpgroup_mma(grad_tile.permute((1, 0)), right, zero, use_acc=False)
            x_hat = widen(m_tile.slice(part * PART, PART, dim=1).load(OUT))
            grad = grad - mean_grad[:, None] - x_hat * mean_product[:, None]
            grad = grad * rstd[:, None] + widen(others[part])
            out_tile.slice(part * PART, PART, dim=1).store(grad.to(out_tile.dtype))
        mbarrier.arrive(empty.index(at))
        fence_async_shared()
        source = through_smem.index(w + zeroth)
        tma.async_copy_shared_to_global(out_desc, [sample, s, residue, 0], source)
        tma.store_wait(0)
        mbarrier.arrive(through_empty.index(w))
        n += 1


@gluon.jit
def sum_up(args, M: gl.constexpr, BLOCK_M: gl.constexpr, PLACES: gl.constexpr):
    """The third warp group."""
    partial, m_smem, grad_smem, ones_smem, ready, empty, size_c, num_tiles = args
    HALF: gl.constexpr = min(MAX_HALF, BLOCK_M)
    HALVES: gl.constexpr = BLOCK_M // HALF
    sums = (gl.full([2 * BLOCK_C, HALF], 0.0, gl.float32, mma_layout(HALF)),) * HALVES
    totals = gl.full([2 * BLOCK_C, ONES], 0.0, gl.float32, mma_layout(ONES))
    turn = gl.to_tensor(0)
    for _tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        for _group in range(2):
            at = turn % PLACES
            mbarrier.wait(ready.index(at), (turn // PLACES) & 1)
            rows = m_smem.index(at).reshape([ROWS, BLOCK_M])
            grad = grad_smem.index(at).reshape([2 * BLOCK_C, ROWS])
            ones = ones_smem.index(turn >> 28)
            added = ()
            for half in gl.static_range(HALVES):
                right = rows.slice(half * HALF, HALF, dim=1)
                added = added + (warpgroup_mma(grad, right, sums[half], is_async=True),)
            totals = warpgroup_mma(grad, ones, totals, is_async=True)
            waited = warpgroup_mma_wait(0, (totals,) + added)
            totals, sums = waited[0], waited[1:]
            mbarrier.arrive(empty.index(at))
            turn += 1
    for half in gl.static_range(HALVES):
        write_sums(sums[half], partial, half * HALF, M, M - half * HALF, M, size_c)
    write_sums(totals, partial, size_c * M, 1, 1, M, size_c)


@gluon.jit
def backward_hopper_kernel(
    m_desc, grad_desc, through_desc, out_desc,
    mask, norm_weight, weight_a, weight_b, partial,
    size_s, size_n, size_c, mask_strides, num_tiles,
    M: gl.constexpr, EPS: gl.constexpr, BLOCK_M: gl.constexpr,
    PLACES: gl.constexpr, GROUP_REGISTERS: gl.constexpr, SUM_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `kernel.backward_kernel`, of which ``partial`` is, too; see the module.

    ``grad_desc`` (2, B N, C, S), the others (B, S, N, M).
    """
    dtype: gl.constexpr = m_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ones_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, ONES], gl.bfloat16)
    weight_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BLOCK_M], gl.bfloat16)
    BLOCKED: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [4, 1], [1, 0])
    rows: gl.constexpr = [1, ROWS, 1, BLOCK_M]
    m_smem = gl.allocate_shared_memory(dtype, [PLACES] + rows, m_desc.layout)
    grad_smem = gl.allocate_shared_memory(dtype, [PLACES, 2, 1, BLOCK_C, ROWS], grad_desc.layout)
    through_smem = gl.allocate_shared_memory(dtype, [2] + rows, through_desc.layout)
    weight_smem = gl.allocate_shared_memory(dtype, [1, 2 * BLOCK_C, BLOCK_M], weight_tile)
    sum_smem = gl.allocate_shared_memory(gl.float32, [1, 2 * BLOCK_C], plain)
    ones_smem = gl.allocate_shared_memory(dtype, [1, ROWS, ONES], ones_layout)
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], barrier)
    ready = gl.allocate_shared_memory(gl.int64, [PLACES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], barrier)
    through_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    through_empty = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    for n in gl.static_range(PLACES):
        mbarrier.init(full.index(n), 1)
        mbarrier.init(ready.index(n), 1)
        mbarrier.init(empty.index(n), 2)
    for n in gl.static_range(2):
        mbarrier.init(through_full.index(n), 1)
        mbarrier.init(through_empty.index(n), 1)
    ones_smem.index(0).store(gl.full([ROWS, ONES], 1.0, dtype, BLOCKED))
    weights = weight_a, weight_b
    keep_weights(norm_weight, weights, weight_smem.index(0), sum_smem.index(0), size_c, M, BLOCK_M)
    fence_async_shared()
    sizes = gl.to_tensor(size_s), gl.to_tensor(size_n), gl.to_tensor(size_c)
    strides = (
        gl.to_tensor(mask_strides[0]), gl.to_tensor(mask_strides[1]), gl.to_tensor(mask_strides[2]),
    )  # fmt: skip
    tiles = gl.to_tensor(num_tiles)
    load_args = (
        m_desc, grad_desc, through_desc, m_smem, grad_smem, through_smem,
        full, empty, through_full, through_empty, sizes, tiles,
    )  # fmt: skip
    args = (
        mask, out_desc, m_smem, grad_smem, through_smem, weight_smem, sum_smem,
        full, ready, empty, through_full, through_empty, sizes, strides, tiles,
    )  # fmt: skip
    sum_args = partial, m_smem, grad_smem, ones_smem, ready, empty, sizes[2], tiles
    gl.warp_specialize(
        [
            (compute, (0, args, M, BLOCK_M, EPS, PLACES)),
            (compute, (1, args, M, BLOCK_M, EPS, PLACES)),
            (sum_up, (sum_args, M, BLOCK_M, PLACES)),
            (load, (load_args, BLOCK_M, PLACES)),
        ],
        [4, 4, 1],
        [GROUP_REGISTERS, SUM_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS - SUM_REGISTERS],
    )
