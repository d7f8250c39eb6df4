"""Backward of normalised projections of wide rows on Hopper GPUs, all but the weights' gradients.

Two warp groups multiply 64 rows of the results' gradient each with the weights, and hand the
product over in shared memory; a third one takes it through LayerNorm's backward while they are at
the next rows already. All registers of a warp group that multiplies are its product's; that of the
third hold its sums over rows. Whole rows of these lie in a warp, which writes memory as rows lie
there.

TMA brings everything: the first warp group asks for the operands some blocks of
outputs ahead, the third one for what belongs to its rows some rows ahead. Beyond the last row and
output it reads zeros.

What several functions take: ``args`` of the first two are the rings of the gradient and of the
weights (`new_ring`), barriers of the blocks that both have done with, and the program's number of
blocks; ``sources`` are the third one's rings: x, then x's gradient from elsewhere and that of the
biased outputs, where there are any.
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

from scalefold_kernels.gluon import REGISTERS, ROWS, mma_layout, new_barriers, widen

STEP = gl.constexpr(8)
"""Rows of LayerNorm's backward at a time, two a warp."""


@gluon.jit
def load_grad(args, block, BLOCKS: gl.constexpr):
    """Start copying one of the program's blocks of the gradient, rows of both warp groups."""
    desc, smem, full = args[0]
    slot = block % smem.shape[0]
    row = 2 * (gl.program_id(0) + block // BLOCKS * gl.num_programs(0)) * ROWS
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    tma.async_copy_global_to_shared(
        desc, [row, block % BLOCKS * smem.shape[2]], full.index(slot), smem.index(slot)
    )


@gluon.jit
def load_weight(args, block, BLOCKS: gl.constexpr):
    """Start copying the weights of one of the program's blocks."""
    desc, smem, full = args[1]
    slot = block % smem.shape[0]
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    tma.async_copy_global_to_shared(
        desc, [block % BLOCKS * smem.shape[1], 0], full.index(slot), smem.index(slot)
    )


@gluon.jit
def multiply(product, args, i, w: gl.constexpr, STEPS: gl.constexpr, BLOCKS: gl.constexpr):
    """Add the products of STEPS blocks from the program's ``i``-th on; returns the next i, too."""
    grads, weights, empty, num_blocks = args
    _, grad_smem, grad_full = grads
    _, weight_smem, weight_full = weights
    STAGES: gl.constexpr = grad_smem.shape[0]
    PLACES: gl.constexpr = weight_smem.shape[0]
    for step in gl.static_range(STEPS):
        slot, place = i % STAGES, i % PLACES
        mbarrier.wait(grad_full.index(slot), (i // STAGES) & 1)
        mbarrier.wait(weight_full.index(place), (i // PLACES) & 1)
        rows = grad_smem.index(slot).slice(w * ROWS, ROWS, dim=0)
        product = warpgroup_mma(rows, weight_smem.index(place), product, is_async=True)
        if step > 0:
            product = warpgroup_mma_wait(1, [product])
            mbarrier.arrive(empty.index((i - 1) % STAGES))
        if w == 0:
            # The places of the block before are filled while this one is multiplied.
            used = i - 1
            if (used >= 0) & (used + PLACES < num_blocks):
                mbarrier.wait(empty.index(used % STAGES), (used // STAGES) & 1)
                load_weight(args, used + PLACES, BLOCKS)
                if used + STAGES < num_blocks:
                    load_grad(args, used + STAGES, BLOCKS)
        i += 1
    product = warpgroup_mma_wait(0, [product])
    mbarrier.arrive(empty.index((i - 1) % STAGES))
    return product, i


@gluon.jit
def compute(
    w: gl.constexpr, args, product_smem, done, free, num_tiles,
    BLOCKS: gl.constexpr, UNROLL: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``, which multiplies."""
    C: gl.constexpr = product_smem.shape[2]
    grads, weights, num_blocks = args[0], args[1], args[3]
    STAGES: gl.constexpr = grads[1].shape[0]
    PLACES: gl.constexpr = weights[1].shape[0]
    i = gl.to_tensor(0)
    if w == 0:
        for block in gl.static_range(STAGES):
            if block < num_blocks:
                load_grad(args, gl.to_tensor(block), BLOCKS)
                if block < PLACES:
                    load_weight(args, gl.to_tensor(block), BLOCKS)
    for n in range(num_tiles):
        product = gl.full([ROWS, C], 0.0, gl.float32, mma_layout(C))
        for _ in range(BLOCKS // UNROLL):
            product, i = multiply(product, args, i, w, UNROLL, BLOCKS)
        if BLOCKS % UNROLL > 0:
            product, i = multiply(product, args, i, w, BLOCKS % UNROLL, BLOCKS)
        mbarrier.wait(free.index(w), (n & 1) ^ 1)
        product_smem.index(w).store(product.to(product_smem.dtype))
        mbarrier.arrive(done.index(w))


@gluon.jit
def first_row(half):
    """Of the program's ``half``-th 64 rows, which both warp groups have in turns."""
    return (2 * (gl.program_id(0) + half // 2 * gl.num_programs(0)) + half % 2) * ROWS


@gluon.jit
def load_rows(sources, n, num_pieces):
    """Start copying the program's n-th few rows, and what belongs to them."""
    PLACES: gl.constexpr = sources[0][1].shape[0]
    PIECE: gl.constexpr = sources[0][1].shape[1]
    NUMBER: gl.constexpr = len(sources)
    if n < num_pieces:
        row = first_row(n * PIECE // ROWS) + n * PIECE % ROWS
        slot = n % PLACES
        # All barriers first: the compiler lets the warps wait for each other once, not each time.
        for s in gl.static_range(NUMBER):
            mbarrier.expect(sources[s][2].index(slot), sources[s][0].block_type.nbytes)
        for s in gl.static_range(NUMBER):
            desc, smem, full = sources[s]
            tma.async_copy_global_to_shared(desc, [row, 0], full.index(slot), smem.index(slot))


@gluon.jit
def load_stats(stats, half, num_rows):
    """Mean and 1 / deviation of 64 rows."""
    row = first_row(half) + gl.arange(0, ROWS, layout=gl.BlockedLayout([1], [32], [4], [0]))
    mean = gl.load(stats + row, mask=row < num_rows, other=0.0)
    return mean, gl.load(stats + num_rows + row, mask=row < num_rows, other=0.0)


@gluon.jit
def fold(x, L: gl.constexpr):
    """(STEP, C) to (STEP / 2, C): sums of the two rows that each thread has."""
    upper, lower = gl.split(x.reshape([2, x.shape[0] // 2, x.shape[1]]).permute((1, 2, 0)))
    return gl.convert_layout(upper + lower, L, assert_trivial=True)


@gluon.jit
def normalise(args, sources, BIASED: gl.constexpr, HAS_THROUGH: gl.constexpr):
    """The warp group of LayerNorm's backward: tiles of both others in turns."""
    (
        normed, grad_x, norm_weight, norm_bias, stats, sums,
        product_smem, mean_smem, rstd_smem, done, free, num_rows, num_tiles,
    ) = args  # fmt: skip
    C: gl.constexpr = product_smem.shape[2]
    NUMBER: gl.constexpr = len(sources)
    PLACES: gl.constexpr = sources[0][1].shape[0]
    PIECE: gl.constexpr = sources[0][1].shape[1]
    # Two rows and eight channels a thread.
    L: gl.constexpr = gl.BlockedLayout([1, 8], [256 // C, C // 8], [4, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, L)
    c = gl.arange(0, C, layout=gl.SliceLayout(0, L))[None, :]
    scale = gl.load(norm_weight + c).to(gl.float32)
    shift = gl.load(norm_bias + c).to(gl.float32)
    of_weight = gl.full([STEP // 2, C], 0.0, gl.float32, L)
    of_bias = of_weight
    of_grad = of_weight
    num_pieces = 2 * num_tiles * (ROWS // PIECE)
    for n in gl.static_range(PLACES):
        load_rows(sources, gl.to_tensor(n), num_pieces)
    n = gl.to_tensor(0)
    ahead = load_stats(stats, 0, num_rows)
    for half in range(2 * num_tiles):
        w = half % 2
        mean_smem.store(ahead[0])
        rstd_smem.store(ahead[1])
        ahead = load_stats(stats, half + 1, num_rows)
        first = first_row(half)
        # From here on, all rows are counted from the tile's first.
        left = num_rows - first
        normed_tile = normed + first.to(gl.int64) * C
        grad_x_tile = grad_x + first.to(gl.int64) * C
        # The compiler would keep all their places in registers, did it know that these stay.
        row_of_step = gl.arange(0, STEP, layout=ROW) + (half >> 28)
        mbarrier.wait(done.index(w), (half // 2) & 1)
        for step in gl.static_range(ROWS // STEP):
            slot = n % PLACES
            if step * STEP % PIECE == 0:
                for s in gl.static_range(NUMBER):
                    mbarrier.wait(sources[s][2].index(slot), (n // PLACES) & 1)
            mean = mean_smem.slice(step * STEP, STEP).load(ROW)
            rstd = rstd_smem.slice(step * STEP, STEP).load(ROW)
            rows = sources[0][1].index(slot).slice(step * STEP % PIECE, STEP, dim=0).load(L)
            grad_rows = widen(product_smem.index(w).slice(step * STEP, STEP, dim=0).load(L))
            x_hat = widen(rows) * rstd[:, None] - (mean * rstd)[:, None]
            of_weight += fold(grad_rows * x_hat, L)
            of_bias += fold(grad_rows, L)
            if BIASED > 0:
                biased_smem = sources[NUMBER - 1][1].index(slot)
                biased = biased_smem.slice(step * STEP % PIECE, STEP, dim=0).load(L)
                of_grad += fold(widen(biased), L)
            normed_rows = x_hat * scale + shift
            grad_rows *= scale
            mean_grad = gl.sum(grad_rows, 1) * (1.0 / C)
            mean_product = gl.sum(grad_rows * x_hat, 1) * (1.0 / C)
            grad_rows = grad_rows - mean_grad[:, None] - x_hat * mean_product[:, None]
            grad_rows *= rstd[:, None]
            if HAS_THROUGH:
                added = sources[1][1].index(slot).slice(step * STEP % PIECE, STEP, dim=0).load(L)
                grad_rows += widen(added)
            if (step + 1) * STEP % PIECE == 0:
                load_rows(sources, n + PLACES, num_pieces)
                n += 1
            row = row_of_step + step * STEP
            at = (row * C)[:, None] + c
            inside = (row < left)[:, None]
            gl.store(normed_tile + at, normed_rows.to(normed.dtype.element_ty), mask=inside)
            gl.store(grad_x_tile + at, grad_rows.to(grad_x.dtype.element_ty), mask=inside)
        mbarrier.arrive(free.index(w))
    sums += gl.program_id(0) * (2 * C + BIASED)
    c = gl.arange(0, C, layout=gl.SliceLayout(0, L))
    gl.store(sums + c, gl.sum(of_weight, 0))
    gl.store(sums + C + c, gl.sum(of_bias, 0))
    if BIASED > 0:
        gl.store(sums + 2 * C + c, gl.sum(of_grad, 0), mask=c < BIASED)


@gluon.jit
def new_ring(desc, PLACES: gl.constexpr):
    """Places in shared memory for what a descriptor's copies bring, with barriers for it."""
    ROWS_OF: gl.constexpr = desc.block_type.shape[0]
    WIDTH: gl.constexpr = desc.block_type.shape[1]
    smem = gl.allocate_shared_memory(desc.dtype, [PLACES, ROWS_OF, WIDTH], desc.layout)
    return desc, smem, new_barriers(PLACES, 1)


@gluon.jit
def projection_backward_wide_kernel(
    grad_desc, weight_desc, x_desc, through_desc, biased_desc, normed, grad_x,
    norm_weight, norm_bias, stats, sums, num_rows, num_tiles,
    C: gl.constexpr, P: gl.constexpr, BIASED: gl.constexpr, HAS_THROUGH: gl.constexpr,
    STAGES: gl.constexpr, WEIGHTS: gl.constexpr, PIECES: gl.constexpr,
    UNROLL: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``sums`` (programs, 2 C + BIASED): of each program's rows, for the norm's
    weight and bias and the last projections' biases.

    There are places for ``STAGES`` blocks of the gradient, which comes from memory, for
    ``WEIGHTS``, no more, of the weights, which are in the cache, and for ``PIECES`` of rows.
    """
    gl.static_assert(WEIGHTS <= STAGES, "blocks of weights are asked for with the gradient's")
    dtype: gl.constexpr = grad_desc.dtype
    DEPTH: gl.constexpr = weight_desc.block_type.shape[0]
    BLOCKS: gl.constexpr = (P + DEPTH - 1) // DEPTH
    tiles = (num_tiles - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)
    args = (
        new_ring(grad_desc, STAGES),
        new_ring(weight_desc, WEIGHTS),
        new_barriers(STAGES, 2),
        tiles * BLOCKS,
    )
    sources = (new_ring(x_desc, PIECES),)
    if HAS_THROUGH:
        sources = sources + (new_ring(through_desc, PIECES),)
    if BIASED > 0:
        sources = sources + (new_ring(biased_desc, PIECES),)
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, C], dtype)
    product_smem = gl.allocate_shared_memory(dtype, [2, ROWS, C], layout)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    mean_smem = gl.allocate_shared_memory(gl.float32, [ROWS], flat)
    rstd_smem = gl.allocate_shared_memory(gl.float32, [ROWS], flat)
    done, free = new_barriers(2, 1), new_barriers(2, 1)
    fence_async_shared()
    norm_args = (
        normed, grad_x, norm_weight, norm_bias, stats, sums,
        product_smem, mean_smem, rstd_smem, done, free, gl.to_tensor(num_rows), tiles,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (compute, (0, args, product_smem, done, free, tiles, BLOCKS, UNROLL)),
            (compute, (1, args, product_smem, done, free, tiles, BLOCKS, UNROLL)),
            (normalise, (norm_args, sources, BIASED, HAS_THROUGH)),
        ],
        [4, 4],
        [GROUP_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS],
    )
