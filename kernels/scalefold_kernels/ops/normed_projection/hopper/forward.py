"""Forward of normalised projections on Hopper GPUs, in Gluon, the level below Triton.

A CTA stays for many tiles of rows. A loader warp brings rows and weights by TMA
and announces them on barriers. Two warp groups have 64 rows each: they normalise them in
registers, where they stay as the left operand of all products with the weights, which pass by in
blocks of outputs that both groups use, or stay where they all fit (STAGES blocks). So shared memory
is read for the weights alone, and the rows' place is free for the next ones at once. Results leave
through shared memory by TMA. Groups drift apart, so that one multiplies while the other
normalises or stores.

Beyond the last row, channel and output TMA reads zeros and writes nothing.
"""

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import tiles
from scalefold_kernels.compiler import async_load, async_store, mma
from scalefold_kernels.gluon import (
    REGISTERS,
    ROWS,
    barrier_pair,
    mma_layout,
    new_barriers,
    wait_full,
    widen,
)
from scalefold_kernels.ops.norm.op import EPS
from scalefold_kernels.ops.normed_projection.arguments import MAX_FEW_OUTPUTS, Norm, Projections
from scalefold_kernels.rows import rows_of
from scalefold_kernels.tma import num_ctas, padded, tiles_of


@gluon.jit
def load(
    args, BLOCKS: gl.constexpr, BLOCK_C: gl.constexpr, BLOCK_P: gl.constexpr, BLOCK_S: gl.constexpr,
    STAGES: gl.constexpr, X_STAGES: gl.constexpr, HAS_FEW: gl.constexpr,
):  # fmt: skip
    """The loader warp."""
    (
        x_desc, weight_desc, few_desc, x_smem, weight_smem, few_weight,
        x_full, x_empty, weight_full, weight_empty, few_full, num_tiles,
    ) = args  # fmt: skip
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        for w in gl.static_range(2):
            place = n % X_STAGES * 2 + w
            mbarrier.wait(x_empty.index(place), ((n // X_STAGES) & 1) ^ 1)
            mbarrier.expect(x_full.index(place), ROWS * BLOCK_C * 2)
            async_load(x_desc, [(2 * tile + w) * ROWS, 0], x_full.index(place), x_smem.index(place))
        if HAS_FEW:
            if n == 0:
                mbarrier.expect(few_full, BLOCK_S * BLOCK_C * 2)
                async_load(few_desc, [0, 0], few_full, few_weight)
        if BLOCKS > STAGES or i == 0:
            for block in range(BLOCKS):
                slot = i % STAGES
                if BLOCKS > STAGES:
                    mbarrier.wait(weight_empty.index(slot), ((i // STAGES) & 1) ^ 1)
                ready = weight_full.index(slot)
                mbarrier.expect(ready, BLOCK_P * BLOCK_C * 2)
                async_load(weight_desc, [block * BLOCK_P, 0], ready, weight_smem.index(slot))
                i += 1
        n += 1


@gluon.jit
def standardise(x, C: gl.constexpr, EPS: gl.constexpr):
    """Rows of mean 0 and variance 1 in float32, mean and 1 / standard deviation."""
    L: gl.constexpr = x.type.layout
    x = widen(x)
    mean = gl.sum(x, 1) * (1.0 / C)
    x = x - mean[:, None]
    if x.shape[1] > C:
        column = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, L))
        x = gl.where((column < C)[None, :], x, 0.0)
    rstd = gl.rsqrt(gl.sum(x * x, 1) * (1.0 / C) + EPS)
    return x * rstd[:, None], mean, rstd


@gluon.jit
def normalised(
    tile, first, norm_weight, norm_bias, stats, num_rows,
    C: gl.constexpr, BLOCK_C: gl.constexpr, EPS: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """Rows after LayerNorm; their statistics are stored."""
    c = gl.arange(0, BLOCK_C, layout=gl.SliceLayout(0, L))
    x_hat, mean, rstd = standardise(tile.load(L), C, EPS)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    gl.store(stats + row, mean, mask=row < num_rows)
    gl.store(stats + num_rows + row, rstd, mask=row < num_rows)
    # Both are 0 beyond C.
    scale = gl.load(norm_weight + c, mask=c < C, other=0.0).to(gl.float32)
    shift = gl.load(norm_bias + c, mask=c < C, other=0.0).to(gl.float32)
    return (x_hat * scale[None, :] + shift[None, :]).to(tile.dtype)


@gluon.jit
def compute(
    w, args,
    C: gl.constexpr, P: gl.constexpr, S: gl.constexpr, SCALED: gl.constexpr, EPS: gl.constexpr,
    BLOCKS: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_P: gl.constexpr, BLOCK_S: gl.constexpr,
    STAGES: gl.constexpr, X_STAGES: gl.constexpr, OUT_STAGES: gl.constexpr,
    HAS_BIAS: gl.constexpr, HAS_FEW: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        norm_weight, norm_bias, bias, first_biased, first_scale, few_scale, few_ptr, stats,
        out_desc, x_smem, weight_smem, few_weight, out_smem,
        x_full, x_empty, weight_full, weight_empty, few_full, num_rows, sample_rows, num_tiles,
    ) = args  # fmt: skip
    OUT: gl.constexpr = mma_layout(BLOCK_P)
    FEW: gl.constexpr = mma_layout(BLOCK_S)
    L: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    dtype: gl.constexpr = x_smem.dtype
    column = gl.arange(0, BLOCK_P, layout=gl.SliceLayout(0, OUT))
    zero = gl.full([ROWS, BLOCK_P], 0.0, gl.float32, OUT)
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        first = (2 * tile + w) * ROWS
        place = n % X_STAGES * 2 + w
        mbarrier.wait(x_full.index(place), (n // X_STAGES) & 1)
        rows = normalised(
            x_smem.index(place), first, norm_weight, norm_bias, stats, num_rows, C, BLOCK_C, EPS, L
        )
        mbarrier.arrive(x_empty.index(place))
        n += 1
        if HAS_FEW:
            mbarrier.wait(few_full, 0)
            none = gl.full([ROWS, BLOCK_S], 0.0, gl.float32, FEW)
            left = gl.convert_layout(rows, gl.DotOperandLayout(0, FEW, 2))
            few = mma(left, few_weight.permute((1, 0)), none, use_acc=False)
            r = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, FEW))
            s = gl.arange(0, BLOCK_S, layout=gl.SliceLayout(0, FEW))
            # Of row r of a sample: the sample's outputs begin at its first row times S.
            within = r % sample_rows
            at = (r - within).to(gl.int64)[:, None] * S + s[None, :] * sample_rows
            gl.store(
                few_ptr + at + within[:, None],
                (few * few_scale).to(dtype),
                mask=(r < num_rows)[:, None] & (s < S)[None, :],
            )
        for block in range(BLOCKS):
            if HAS_BIAS:
                p = block * BLOCK_P + column
                inside = (p >= first_biased) & (p < P)
                shift = gl.load(bias + p - first_biased, mask=inside, other=0.0).to(gl.float32)
            if BLOCKS > STAGES:
                slot = wait_full(weight_full, i, STAGES)
            else:
                slot = block
                mbarrier.wait(weight_full.index(slot), 0)
            out = mma(rows, weight_smem.index(slot).permute((1, 0)), zero, use_acc=False)
            if BLOCKS > STAGES:
                mbarrier.arrive(weight_empty.index(slot))
            # Before the bias is added: that is one instruction then.
            if SCALED > 0:
                if SCALED % BLOCK_P == 0:
                    out *= gl.where(block * BLOCK_P < SCALED, first_scale, 1.0)
                else:
                    own = block * BLOCK_P + column < SCALED
                    out *= gl.where(own, first_scale, 1.0)[None, :]
            if HAS_BIAS:
                out += shift[None, :]
            out_tile = out_smem.index(i % OUT_STAGES * 2 + w)
            # What was last in this place has left.
            tma.store_wait(OUT_STAGES - 1)
            out_tile.store(out.to(dtype))
            fence_async_shared()
            async_store(out_desc, [first, block * BLOCK_P], out_tile)
            i += 1
    tma.store_wait(0)


@gluon.jit
def projection_forward_hopper_kernel(
    x_desc, weight_desc, few_desc, out_desc,
    norm_weight, norm_bias, bias, first_scale, few_scale, few_ptr, stats,
    first_biased, num_rows, sample_rows, num_tiles,
    C: gl.constexpr, P: gl.constexpr, S: gl.constexpr, SCALED: gl.constexpr, EPS: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_P: gl.constexpr, BLOCK_S: gl.constexpr,
    STAGES: gl.constexpr, X_STAGES: gl.constexpr, OUT_STAGES: gl.constexpr,
    HAS_BIAS: gl.constexpr, HAS_FEW: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `..triton.projection_forward_kernel`; see the module. The first ``SCALED`` outputs are
    multiplied by ``first_scale``, before ``bias`` is added.
    """
    dtype: gl.constexpr = x_desc.dtype
    places: gl.constexpr = 2 * X_STAGES
    BLOCKS: gl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    x_smem = gl.allocate_shared_memory(dtype, [places, ROWS, BLOCK_C], x_desc.layout)
    weight_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_P, BLOCK_C], weight_desc.layout)
    few_weight = gl.allocate_shared_memory(dtype, [BLOCK_S, BLOCK_C], few_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [2 * OUT_STAGES, ROWS, BLOCK_P], out_desc.layout)
    x_full, x_empty = barrier_pair(places, 1)
    # A barrier that nobody waits for must not be: its memory is given away while it lives.
    if BLOCKS > STAGES:
        weight_full, weight_empty = barrier_pair(STAGES, 2)
    else:
        weight_full = new_barriers(STAGES, 1)
        weight_empty = weight_full
    few_full = new_barriers(1, 1).index(0) if HAS_FEW else x_full.index(0)
    fence_async_shared()
    rows, tiles = gl.to_tensor(num_rows), gl.to_tensor(num_tiles)
    load_args = (
        x_desc, weight_desc, few_desc, x_smem, weight_smem, few_weight,
        x_full, x_empty, weight_full, weight_empty, few_full, tiles,
    )  # fmt: skip
    args = (
        norm_weight, norm_bias, bias, gl.to_tensor(first_biased), first_scale,
        few_scale, few_ptr, stats, out_desc,
        x_smem, weight_smem, few_weight, out_smem,
        x_full, x_empty, weight_full, weight_empty, few_full, rows, gl.to_tensor(sample_rows),
        tiles,
    )  # fmt: skip
    # fmt: off
    gl.warp_specialize(
        [
            (compute, (
                gl.to_tensor(0), args, C, P, S, SCALED, EPS, BLOCKS, BLOCK_C, BLOCK_P, BLOCK_S,
                STAGES, X_STAGES, OUT_STAGES, HAS_BIAS, HAS_FEW,
            )),
            (compute, (
                gl.to_tensor(1), args, C, P, S, SCALED, EPS, BLOCKS, BLOCK_C, BLOCK_P, BLOCK_S,
                STAGES, X_STAGES, OUT_STAGES, HAS_BIAS, HAS_FEW,
            )),
            (load, (
                load_args, BLOCKS, BLOCK_C, BLOCK_P, BLOCK_S, STAGES, X_STAGES, HAS_FEW,
            )),
        ],
        [4, 1],
        [GROUP_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS],
    )
    # fmt: on


def forward(x: Tensor, norm: Norm, projections: Projections, out: Tensor, few: Tensor) -> None:
    """Fill ``out``, ``few`` and the statistics."""
    rows, sizes, weight = rows_of(x), projections.sizes, projections.weight
    shape = rows.shape_class(P=sizes.outputs, S=sizes.few)
    launch = tiles.tile("projection_forward_hopper", "sm_90", shape)
    width, block = padded(sizes.channels), launch["BLOCK_P"]
    num_tiles = triton.cdiv(rows.num_rows, 2 * ROWS.value)
    few_weight = weight if projections.few is None else projections.few
    bias = projections.scaled_bias()
    projection_forward_hopper_kernel[(num_ctas(num_tiles, x.device),)](
        tiles_of(rows.matrix(), ROWS.value, width), tiles_of(weight, block, width),
        tiles_of(few_weight, few_block(sizes.few), width),
        tiles_of(out.view(-1, sizes.outputs), ROWS.value, block), norm.weight, norm.bias,
        norm.weight if bias is None else bias, projections.first_scale, projections.few_scale, few,
        norm.stats, sizes.first_biased, rows.num_rows, rows.num_rows // x.shape[0], num_tiles,
        C=sizes.channels, P=sizes.outputs, S=sizes.few,
        SCALED=0 if projections.first_scale == 1 else projections.first, EPS=EPS, BLOCK_C=width,
        BLOCK_S=few_block(sizes.few), HAS_BIAS=bias is not None, HAS_FEW=sizes.few > 0, **launch,
    )  # fmt: skip


def few_block(few: int) -> int:
    """Columns of a product with the weight of few outputs: 8 or 16."""
    return 8 if few <= 8 else MAX_FEW_OUTPUTS
