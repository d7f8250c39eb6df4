"""Forward of the operands on Hopper GPUs; see `parts`.

Rows are multiplied as they come, by the weights times the norm's; what normalising them adds to a
product follows from their statistics, which a group finds meanwhile. The product is made
transposed, since the operands lie with the sequences last.
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

from scalefold_kernels.gluon import REGISTERS, ROWS, columns, mma_layout, row_statistics
from scalefold_kernels.outer_product.operands.hopper.parts import (
    BLOCK_C,
    PART,
    load_mask,
    place,
    weight_layout,
)


@gluon.jit
def load(args, BLOCK_M: gl.constexpr, PLACES: gl.constexpr):
    """The loader warp."""
    m_desc, m_smem, full, empty, sizes, num_tiles = args
    turn = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        sample, residue, s = place(tile, sizes)
        for w in gl.static_range(2):
            at = turn % PLACES
            mbarrier.wait(empty.index(at), ((turn // PLACES) & 1) ^ 1)
            mbarrier.expect(full.index(at), BLOCK_M * ROWS * 2)
            tma.async_copy_global_to_shared(
                m_desc, [sample, s + w * ROWS, residue, 0], full.index(at), m_smem.index(at)
            )
            turn += 1


@gluon.jit
def load_channels(vector, M: gl.constexpr, BLOCK_M: gl.constexpr):
    """Of the norm's weight or bias, in float32, as `load_weight` has them."""
    column = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, weight_layout(BLOCK_M)))
    at = gl.max_contiguous(gl.multiple_of(vector + column, 16), 8)
    inside = gl.max_constancy(column < M, 8)
    return gl.load(at, mask=inside, other=0.0).to(gl.float32)


@gluon.jit
def load_weight(weight, size_c, M: gl.constexpr, BLOCK_M: gl.constexpr):
    """Of an operand, (BLOCK_C, BLOCK_M) in float32."""
    L: gl.constexpr = weight_layout(BLOCK_M)
    column = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, L))
    c = gl.arange(0, BLOCK_C, layout=gl.SliceLayout(1, L))
    # What a launch tells of its arguments is lost on the way to a warp group.
    at = gl.multiple_of(weight + c[:, None] * M + column[None, :], [1, 16])
    inside = gl.max_constancy((c < size_c)[:, None] & (column < M)[None, :], [1, 8])
    return gl.load(gl.max_contiguous(at, [1, 8]), mask=inside, other=0.0).to(gl.float32)


@gluon.jit
def keep_weight(
    w: gl.constexpr, norm_weight, norm_bias, weight, bias, smem, vectors, size_c,
    M: gl.constexpr, BLOCK_M: gl.constexpr,
):  # fmt: skip
    """An operand's weight times the norm's; the sums of its rows, and the bias with the norm's."""
    wide = load_weight(weight, size_c, M, BLOCK_M)
    narrow = (wide * load_channels(norm_weight, M, BLOCK_M)[None, :]).to(smem.dtype)
    smem.slice(w * BLOCK_C, BLOCK_C, dim=0).store(narrow)
    vectors.index(0).slice(w * BLOCK_C, BLOCK_C).store(gl.sum(narrow.to(gl.float32), 1))
    shift = gl.sum(wide * load_channels(norm_bias, M, BLOCK_M)[None, :], 1)
    c = gl.arange(0, BLOCK_C, layout=shift.type.layout)
    shift += gl.load(bias + c, mask=c < size_c, other=0.0).to(gl.float32)
    vectors.index(1).slice(w * BLOCK_C, BLOCK_C).store(shift)


@gluon.jit
def compute(
    w: gl.constexpr, args,
    M: gl.constexpr, BLOCK_M: gl.constexpr, EPS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        mask, norm_weight, norm_bias, weights, biases, out_desc, m_smem, weight_smem, vectors,
        out_smem, full, empty, weights_full, sizes, mask_strides, num_tiles,
    ) = args  # fmt: skip
    OUT: gl.constexpr = mma_layout(ROWS)
    COLUMN: gl.constexpr = gl.SliceLayout(0, OUT)
    ROW: gl.constexpr = gl.SliceLayout(1, mma_layout(PART))
    zero = gl.full([2 * BLOCK_C, ROWS], 0.0, gl.float32, OUT)
    keep_weight(
        w, norm_weight, norm_bias, weights[w], biases[w], weight_smem, vectors, sizes[2],
        M, BLOCK_M,
    )  # fmt: skip
    fence_async_shared()
    mbarrier.arrive(weights_full.index(0))
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        sample, residue, s = place(tile, sizes)
        s += w * ROWS
        turn = 2 * n + w
        at = turn % PLACES
        factor = load_mask(mask, mask_strides, sample, s, residue, sizes, ROW).to(gl.float32)
        # Each time: the barrier must stay what its memory is for.
        mbarrier.wait(weights_full.index(0), 0)
        mbarrier.wait(full.index(at), (turn // PLACES) & 1)
        m_tile = m_smem.index(at).reshape([ROWS, BLOCK_M])
        product = warpgroup_mma(
            weight_smem, m_tile.permute((1, 0)), zero, use_acc=False, is_async=True
        )
        parts = columns(m_tile.load(mma_layout(BLOCK_M)), PART)
        mean, rstd = row_statistics(parts, M, EPS)
        scale = factor * rstd
        product = warpgroup_mma_wait(0, [product])
        mbarrier.arrive(empty.index(at))
        product *= gl.convert_layout(scale, COLUMN)[None, :]
        sums = vectors.index(0).load(gl.SliceLayout(1, OUT))
        product -= sums[:, None] * gl.convert_layout(scale * mean, COLUMN)[None, :]
        shift = vectors.index(1).load(gl.SliceLayout(1, OUT))
        product += shift[:, None] * gl.convert_layout(factor, COLUMN)[None, :]
        out_tile = out_smem.index(w)
        # The tile before has left.
        tma.store_wait(0)
        out_tile.reshape([2 * BLOCK_C, ROWS]).store(product.to(out_tile.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [0, sample * sizes[1] + residue, 0, s], out_tile)
        n += 1
    tma.store_wait(0)


@gluon.jit
def forward_hopper_kernel(
    m_desc, out_desc,
    mask, norm_weight, norm_bias, weight_a, weight_b, bias_a, bias_b,
    size_s, size_n, size_c, mask_strides, num_tiles,
    M: gl.constexpr, EPS: gl.constexpr, BLOCK_M: gl.constexpr,
    PLACES: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `kernel.forward_kernel`; see the module.

    ``m_desc`` (B, S, N, M), ``out_desc`` (2, B N, C, S).
    """
    dtype: gl.constexpr = m_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    weight_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BLOCK_M], gl.bfloat16)
    m_smem = gl.allocate_shared_memory(dtype, [PLACES, 1, ROWS, 1, BLOCK_M], m_desc.layout)
    weight_smem = gl.allocate_shared_memory(dtype, [2 * BLOCK_C, BLOCK_M], weight_tile)
    vectors = gl.allocate_shared_memory(gl.float32, [2, 2 * BLOCK_C], plain)
    out_smem = gl.allocate_shared_memory(dtype, [2, 2, 1, BLOCK_C, ROWS], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], barrier)
    weights_full = gl.allocate_shared_memory(gl.int64, [1, 1], barrier)
    mbarrier.init(weights_full.index(0), 2)
    for n in gl.static_range(PLACES):
        mbarrier.init(full.index(n), 1)
        mbarrier.init(empty.index(n), 1)
    fence_async_shared()
    sizes = gl.to_tensor(size_s), gl.to_tensor(size_n), gl.to_tensor(size_c)
    strides = (
        gl.to_tensor(mask_strides[0]), gl.to_tensor(mask_strides[1]), gl.to_tensor(mask_strides[2]),
    )  # fmt: skip
    tiles = gl.to_tensor(num_tiles)
    load_args = m_desc, m_smem, full, empty, sizes, tiles
    args = (
        mask, norm_weight, norm_bias, (weight_a, weight_b), (bias_a, bias_b), out_desc, m_smem,
        weight_smem, vectors, out_smem, full, empty, weights_full, sizes, strides, tiles,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (compute, (0, args, M, BLOCK_M, EPS, PLACES)),
            (compute, (1, args, M, BLOCK_M, EPS, PLACES)),
            (load, (load_args, BLOCK_M, PLACES)),
        ],
        [4, 1],
        [GROUP_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS],
    )
