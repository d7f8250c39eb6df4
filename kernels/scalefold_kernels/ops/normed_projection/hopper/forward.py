"""Forward of normalised projections on Hopper GPUs: the simplest kernel, to be read first.

A CTA stays for many tiles of rows. The loader brings rows and blocks of weights, in a ring each.
Each of two warp groups normalises 64 rows in registers, where they stay as the left operand of the
products with all blocks of outputs, and gives their slot back at once. A block of weights is given
back after its product, or stays where all fit in the ring. Results wait in shared memory until TMA
has stored them. Beyond the last row, channel and output TMA reads zeros and writes nothing.
"""

from collections import namedtuple

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma
from scalefold_kernels.gluon import ROWS, mma_layout, two_groups, widen, zeros
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.norm.triton import EPS
from scalefold_kernels.ops.normed_projection.arguments import Norm, Projections
from scalefold_kernels.rows import rows_of
from scalefold_kernels.tma import num_ctas, padded, tiles_of

# Names with ``few`` are of a narrow projection whose result is stored by itself.
Cta = namedtuple(
    "Cta",
    "norm_weight_ptr norm_bias_ptr bias_ptr first_biased first_scale few_scale few_ptr stats_ptr "
    "out_desc out_smem x weight few_desc few_weight few_full num_rows sample_rows num_tiles "
    "C D F SCALED BLOCKS BLOCK_C BLOCK_D BLOCK_F STAGES OUT_STAGES HAS_BIAS HAS_FEW",
)


@gluon.constexpr_function
def few_block(few):
    """Columns of a product with the weight of few outputs, or its gradient."""
    return 8 if few <= 8 else 16


@gluon.jit
def load(cta):
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        for w in gl.static_range(2):
            ring.load(cta.x, n, [(2 * tile + w) * ROWS, 0], w)
        if cta.HAS_FEW:
            if n == 0:
                smem.load(cta.few_desc, [0, 0], cta.few_full, cta.few_weight)
        if cta.BLOCKS > cta.STAGES or i == 0:
            for block in range(cta.BLOCKS):
                if cta.BLOCKS > cta.STAGES:
                    ring.load(cta.weight, i, [block * cta.BLOCK_D, 0])
                else:
                    ring.fill(cta.weight, i, [block * cta.BLOCK_D, 0])
                i += 1
        n += 1


@gluon.jit
def standardise(x, C: gl.constexpr):
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
def normalised(tile, first, cta, L: gl.constexpr):
    """Rows after LayerNorm; their statistics are stored."""
    c = gl.arange(0, cta.BLOCK_C, layout=gl.SliceLayout(0, L))
    x_hat, mean, rstd = standardise(tile.load(L), cta.C)
    r = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    gl.store(cta.stats_ptr + r, mean, mask=r < cta.num_rows)
    gl.store(cta.stats_ptr + cta.num_rows + r, rstd, mask=r < cta.num_rows)
    # Both are 0 beyond C.
    norm_weight = load_vector(cta.norm_weight_ptr, c, cta.C)
    norm_bias = load_vector(cta.norm_bias_ptr, c, cta.C)
    return (x_hat * norm_weight[None, :] + norm_bias[None, :]).to(tile.dtype)


@gluon.jit
def compute(w, cta):
    OUT: gl.constexpr = mma_layout(cta.BLOCK_D)
    FEW: gl.constexpr = mma_layout(cta.BLOCK_F)
    L: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    dtype: gl.constexpr = cta.out_desc.dtype
    column = gl.arange(0, cta.BLOCK_D, layout=gl.SliceLayout(0, OUT))
    zero = zeros(ROWS, cta.BLOCK_D)
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        first = (2 * tile + w) * ROWS
        x_slot = ring.wait_full(cta.x, n, w)
        rows = normalised(cta.x.slots.index(x_slot), first, cta, L)
        mbarrier.arrive(cta.x.empty.index(x_slot))
        n += 1
        if cta.HAS_FEW:
            mbarrier.wait(cta.few_full, 0)
            none = zeros(ROWS, cta.BLOCK_F)
            left = gl.convert_layout(rows, gl.DotOperandLayout(0, FEW, 2))
            few = mma(left, cta.few_weight.permute((1, 0)), none, use_acc=False)
            r = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, FEW))
            f = gl.arange(0, cta.BLOCK_F, layout=gl.SliceLayout(0, FEW))
            # Offset of row r of a sample: its outputs begin at the sample's first row times F.
            within = r % cta.sample_rows
            at = (r - within).to(gl.int64)[:, None] * cta.F + f[None, :] * cta.sample_rows
            there = (r < cta.num_rows)[:, None] & (f < cta.F)[None, :]
            gl.store(
                cta.few_ptr + at + within[:, None], (few * cta.few_scale).to(dtype), mask=there
            )
        for block in range(cta.BLOCKS):
            if cta.HAS_BIAS:
                d = block * cta.BLOCK_D + column
                inside = (d >= cta.first_biased) & (d < cta.D)
                bias_ptr = cta.bias_ptr + d - cta.first_biased
                bias = gl.load(bias_ptr, mask=inside, other=0.0).to(gl.float32)
            if cta.BLOCKS > cta.STAGES:
                slot = ring.wait_full(cta.weight, i)
            else:  # all weights stay
                slot = block
                mbarrier.wait(cta.weight.full.index(slot), 0)
            out = mma(rows, cta.weight.slots.index(slot).permute((1, 0)), zero, use_acc=False)
            if cta.BLOCKS > cta.STAGES:
                mbarrier.arrive(cta.weight.empty.index(slot))
            # Before the bias is added: that is one instruction then.
            if cta.SCALED > 0:
                if cta.SCALED % cta.BLOCK_D == 0:
                    out *= gl.where(block * cta.BLOCK_D < cta.SCALED, cta.first_scale, 1.0)
                else:
                    own = block * cta.BLOCK_D + column < cta.SCALED
                    out *= gl.where(own, cta.first_scale, 1.0)[None, :]
            if cta.HAS_BIAS:
                out += bias[None, :]
            out_tile = cta.out_smem.index(i % cta.OUT_STAGES * 2 + w)
            # What was last in this place has left.
            tma.store_wait(cta.OUT_STAGES - 1)
            out_tile.store(out.to(dtype))
            fence_async_shared()
            async_store(cta.out_desc, [first, block * cta.BLOCK_D], out_tile)
            i += 1
    tma.store_wait(0)


@gluon.jit
def normed_projection_forward_hopper_kernel(
    x_desc, weight_desc, few_desc, out_desc, norm_weight_ptr, norm_bias_ptr, bias_ptr, first_scale,
    few_scale, few_ptr, stats_ptr, first_biased, num_rows, sample_rows, num_tiles, C: gl.constexpr,
    D: gl.constexpr, F: gl.constexpr, SCALED: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_F: gl.constexpr, STAGES: gl.constexpr,
    X_STAGES: gl.constexpr, OUT_STAGES: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_FEW: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `..triton.normed_projection_forward_kernel`; see the module. The first ``SCALED`` outputs
    are multiplied by ``first_scale``, before ``bias`` is added.
    """
    BLOCKS: gl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    x = ring.new(x_desc, 2 * X_STAGES, 1)
    weight = ring.new(weight_desc, STAGES, 2 if BLOCKS > STAGES else 0)
    few_weight, out_smem = smem.tile(few_desc), smem.tiles(out_desc, 2 * OUT_STAGES)
    few_full = smem.barrier() if HAS_FEW else x.full.index(0)  # else unused
    two_groups(Cta(
        norm_weight_ptr, norm_bias_ptr, bias_ptr, gl.to_tensor(first_biased), first_scale,
        few_scale, few_ptr, stats_ptr, out_desc, out_smem, x, weight, few_desc, few_weight,
        few_full, gl.to_tensor(num_rows), gl.to_tensor(sample_rows), gl.to_tensor(num_tiles),
        C, D, F, SCALED, BLOCKS, BLOCK_C, BLOCK_D, BLOCK_F, STAGES, OUT_STAGES, HAS_BIAS,
        HAS_FEW,
    ), compute, load, GROUP_REGISTERS, gl.to_tensor(0), gl.to_tensor(1))  # fmt: skip


def forward(x: Tensor, norm: Norm, projections: Projections, out: Tensor, few: Tensor) -> None:
    rows, sizes, weight = rows_of(x), projections.sizes, projections.weight
    config = rows.config("normed_projection_forward_hopper", "sm_90", D=sizes.outputs, F=sizes.few)
    width, block = padded(sizes.channels), config["BLOCK_D"]
    num_tiles = triton.cdiv(rows.num_rows, 2 * ROWS.value)
    few_weight = weight if projections.few is None else projections.few
    bias = projections.scaled_bias()
    normed_projection_forward_hopper_kernel[(num_ctas(num_tiles, x.device),)](
        tiles_of(rows.matrix(), ROWS.value, width), tiles_of(weight, block, width),
        tiles_of(few_weight, few_block(sizes.few), width),
        tiles_of(out.view(-1, sizes.outputs), ROWS.value, block), norm.weight, norm.bias,
        norm.weight if bias is None else bias, projections.first_scale, projections.few_scale, few,
        norm.stats, sizes.first_biased, rows.num_rows, rows.num_rows // x.shape[0], num_tiles,
        C=sizes.channels, D=sizes.outputs, F=sizes.few,
        SCALED=0 if projections.first_scale == 1 else projections.first, BLOCK_C=width,
        BLOCK_F=few_block(sizes.few), HAS_BIAS=bias is not None, HAS_FEW=sizes.few > 0, **config,
    )  # fmt: skip
