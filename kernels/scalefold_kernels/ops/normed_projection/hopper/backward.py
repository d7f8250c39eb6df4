"""Backward of normalised projections on Hopper GPUs, all but the wide weights' gradients.

The loader brings blocks of the outputs' gradient, for each of two warp groups, and of the weights,
for both; then x and its gradient from elsewhere. A group multiplies block after block, does
LayerNorm's backward on the chip and overwrites x and its gradient, which leave by TMA; normalised
rows are for the weights' gradients. Products with ones sum over rows, in registers to the end.
"""

from collections import namedtuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma, mma_wait
from scalefold_kernels.gluon import ROWS, columns, mma_layout, opaque_zero, two_groups, widen, zeros
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.normed_projection.arguments import (
    MAX_FEW_OUTPUTS,
    Gradients,
    Norm,
    Projections,
)
from scalefold_kernels.ops.normed_projection.hopper.forward import few_block
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.smem import SUMS
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tma import num_ctas, padded, tiles_of, within_reach

PART = gl.constexpr(64)
"""Channels whose gradients a warp group computes at a time, to save registers."""

Cta = namedtuple(
    "Cta",
    "norm_smem stats_ptr sums_ptr first_scale few_scale few_ptr few_stride few_stride_f "
    "normed_desc grad_x_desc grad weight few_desc few_weight few_full few_smem ones spare_smem x "
    "through num_rows num_tiles C D F BLOCKS SCALED FIRST_BIASED BLOCK_C BLOCK_D BLOCK_F FEW "
    "HAS_THROUGH HAS_FEW",
)


@gluon.jit
def load(cta):
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        for block in range(cta.BLOCKS):
            ring.load(cta.weight, i, [block * cta.BLOCK_D, 0])
            for w in gl.static_range(2):
                ring.load(cta.grad, i, [(2 * tile + w) * ROWS, block * cta.BLOCK_D], w)
            i += 1
        if cta.HAS_FEW:
            if n == 0:
                smem.load(cta.few_desc, [0, 0], cta.few_full, cta.few_weight)
        for w in gl.static_range(2):
            at = [(2 * tile + w) * ROWS, 0]
            if cta.HAS_THROUGH:
                ring.load_pair(cta.through, cta.x, n, at, at, w)
            else:
                ring.load(cta.x, n, at, w)
        n += 1


@gluon.jit
def add_rows(sums, x, spare, ones):
    """Sums over rows, added to ``sums`` (PART, SUMS) by a product with ones."""
    spare.store(x.to(spare.dtype))
    fence_async_shared()
    return mma(spare.permute((1, 0)), ones, sums)


@gluon.jit
def normalise_backward(grad_normed, x_tile, grad_tile, mean, rstd, sums, spare, ones, cta):
    """Add LayerNorm's gradient to its tile, and overwrite x by the normalised rows.

    Returns ``sums`` with these rows added: two for each part of the channels, for the gradients of
    the norm's weight and bias.
    """
    L: gl.constexpr = mma_layout(PART)
    COLUMN: gl.constexpr = gl.SliceLayout(0, L)
    grads = columns(grad_normed, PART)
    added = ()
    mean_grad = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, L))
    mean_product = mean_grad
    for part in gl.static_range(cta.BLOCK_C // PART):
        norm_weight = cta.norm_smem.index(0).slice(part * PART, PART).load(COLUMN)
        piece = x_tile.slice(part * PART, PART, dim=1)
        x_hat = (widen(piece.load(L)) - mean[:, None]) * rstd[:, None]
        product = grads[part] * x_hat
        mean_grad += gl.sum(grads[part] * norm_weight[None, :], 1)
        mean_product += gl.sum(product * norm_weight[None, :], 1)
        added = added + (
            add_rows(sums[2 * part], product, spare, ones),
            add_rows(sums[2 * part + 1], grads[part], spare, ones),
        )
    mean_grad *= 1.0 / cta.C
    mean_product *= 1.0 / cta.C
    for part in gl.static_range(cta.BLOCK_C // PART):
        piece = x_tile.slice(part * PART, PART, dim=1)
        x_hat = (widen(piece.load(L)) - mean[:, None]) * rstd[:, None]
        norm_weight = cta.norm_smem.index(0).slice(part * PART, PART).load(COLUMN)
        norm_bias = cta.norm_smem.index(1).slice(part * PART, PART).load(COLUMN)
        piece.store((x_hat * norm_weight[None, :] + norm_bias[None, :]).to(x_tile.dtype))
        grad = grads[part] * norm_weight[None, :]
        grad = (grad - mean_grad[:, None] - x_hat * mean_product[:, None]) * rstd[:, None]
        piece = grad_tile.slice(part * PART, PART, dim=1)
        if cta.HAS_THROUGH:
            grad += widen(piece.load(L))
        piece.store(grad.to(grad_tile.dtype))
    return added


@gluon.jit
def load_few(cta, first, BLOCK_F: gl.constexpr, LAYOUT: gl.constexpr):
    """Rows of the gradient of the projection with few outputs, from the ``first`` on."""
    r = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    f = gl.arange(0, BLOCK_F, layout=gl.SliceLayout(0, LAYOUT))
    return gl.load(
        cta.few_ptr + (r.to(gl.int64) * cta.few_stride)[:, None] + (f * cta.few_stride_f)[None, :],
        mask=(r < cta.num_rows)[:, None] & (f < cta.F)[None, :],
        other=0.0,
    )


@gluon.jit
def give_back(cta, i, w):
    """The slots of block ``i`` of weight and gradient."""
    mbarrier.arrive(cta.weight.empty.index(ring.slot(cta.weight, i)))
    mbarrier.arrive(cta.grad.empty.index(ring.slot(cta.grad, i, w)))


@gluon.jit
def multiply(n, w, first, bias_sums, few, few_tile, ones, cta, FIRST: gl.constexpr):
    """Gradient of the normalised rows of the ``n``-th tile, and ``bias_sums`` with its rows.

    Blocks of outputs before ``FIRST`` have no sums; those before ``SCALED`` <= ``FIRST`` were
    multiplied by ``first_scale``.
    """
    THIN: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [2, 2], [0, 1])
    grad_normed = zeros(ROWS, cta.BLOCK_C)
    for block in range(FIRST):
        i = n * cta.BLOCKS + block
        slot, grad_slot = ring.wait_full(cta.weight, i), ring.wait_full(cta.grad, i, w)
        grad = cta.grad.slots.index(grad_slot)
        grad_normed = mma(grad, cta.weight.slots.index(slot), grad_normed)
        mbarrier.arrive(cta.weight.empty.index(slot))
        mbarrier.arrive(cta.grad.empty.index(grad_slot))
        if cta.SCALED > 0:
            if block == cta.SCALED - 1:
                grad_normed *= cta.first_scale
    added = ()
    for block in gl.static_range(FIRST, cta.BLOCKS):
        i = n * cta.BLOCKS + block
        slot, grad_slot = ring.wait_full(cta.weight, i), ring.wait_full(cta.grad, i, w)
        grad = cta.grad.slots.index(grad_slot)
        added += (mma(grad.permute((1, 0)), ones, bias_sums[block - FIRST], is_async=True),)
        grad_normed = mma(grad, cta.weight.slots.index(slot), grad_normed, is_async=True)
        if block > FIRST:
            # This block's two products may be under way; those of the block before are done.
            grad_normed = mma_wait(1, [grad_normed])
            give_back(cta, i - 1, w)
    if cta.HAS_FEW:
        # The left operand of this product; in shared memory, the right one of another.
        few_tile.store(load_few(cta, first, cta.FEW, THIN))
        mbarrier.wait(cta.few_full, 0)
        grad_normed = mma(few, cta.few_weight, grad_normed, is_async=True)
    waited = mma_wait(0, (grad_normed,) + added)
    grad_normed = waited[0]
    bias_sums = ()
    for block in gl.static_range(FIRST, cta.BLOCKS):
        bias_sums = bias_sums + (waited[1 + block - FIRST],)
    give_back(cta, n * cta.BLOCKS + cta.BLOCKS - 1, w)
    return grad_normed, bias_sums


@gluon.jit
def write_sums(w, norm_sums, bias_sums, weight_sum, cta, FIRST: gl.constexpr):
    """A warp group's sums over its rows, to memory: its row of ``sums``."""
    TRANSPOSED: gl.constexpr = mma_layout(cta.FEW)
    BIAS: gl.constexpr = mma_layout(SUMS)
    worker = 2 * gl.program_id(0) + w
    sums = cta.sums_ptr + worker * (2 * cta.C + cta.D - cta.FIRST_BIASED + cta.F * cta.C)
    # All columns of a product with ones are the same.
    one = gl.arange(0, SUMS, layout=gl.SliceLayout(0, BIAS))[None, :]
    for part in gl.static_range(cta.BLOCK_C // PART):
        c = part * PART + gl.arange(0, PART, layout=gl.SliceLayout(1, BIAS))[:, None] + one
        inside = (c < cta.C) & (one == 0)
        gl.store(sums + c, norm_sums[2 * part], mask=inside)
        gl.store(sums + cta.C + c, norm_sums[2 * part + 1], mask=inside)
    for block in gl.static_range(FIRST, cta.BLOCKS):
        d = gl.arange(0, cta.BLOCK_D, layout=gl.SliceLayout(1, BIAS))[:, None]
        d = block * cta.BLOCK_D + d + one
        inside = (d >= cta.FIRST_BIASED) & (d < cta.D) & (one == 0)
        gl.store(sums + 2 * cta.C + d - cta.FIRST_BIASED, bias_sums[block - FIRST], mask=inside)
    if cta.HAS_FEW:
        c = gl.arange(0, cta.BLOCK_C, layout=gl.SliceLayout(1, TRANSPOSED))
        f = gl.arange(0, cta.FEW, layout=gl.SliceLayout(0, TRANSPOSED))
        gl.store(
            sums + 2 * cta.C + cta.D - cta.FIRST_BIASED + f[None, :] * cta.C + c[:, None],
            weight_sum * cta.few_scale,
            mask=(c < cta.C)[:, None] & (f < cta.F)[None, :],
        )


@gluon.jit
def compute(w, cta):
    OUT: gl.constexpr = mma_layout(cta.BLOCK_C)
    A: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, mma_layout(PART))
    # Blocks that are summed too: the last one at least.
    FIRST: gl.constexpr = min(cta.FIRST_BIASED, cta.D - 1) // cta.BLOCK_D
    weight_sum = zeros(cta.BLOCK_C, cta.FEW)
    norm_sums = ()
    for _sum in gl.static_range(2 * (cta.BLOCK_C // PART)):
        norm_sums = norm_sums + (zeros(PART, SUMS),)
    bias_sums = ()
    for _biased in gl.static_range(FIRST, cta.BLOCKS):
        bias_sums = bias_sums + (zeros(cta.BLOCK_D, SUMS),)
    own_tiles = gl.cdiv(cta.num_tiles - gl.program_id(0), gl.num_programs(0))
    for n in range(own_tiles):
        first = (2 * (gl.program_id(0) + n * gl.num_programs(0)) + w) * ROWS
        zero = opaque_zero(n)
        ones, spare = cta.ones.index(zero), cta.spare_smem.index(w + zero)
        x_tile, grad_tile = cta.x.slots.index(w + zero), cta.through.slots.index(w + zero)
        few_tile = cta.few_smem.index(w + zero)
        # Loaded long before they are used.
        r = first + gl.arange(0, ROWS, layout=ROW)
        mean = gl.load(cta.stats_ptr + r, mask=r < cta.num_rows, other=0.0)
        rstd = gl.load(cta.stats_ptr + cta.num_rows + r, mask=r < cta.num_rows, other=0.0)
        few = few_tile  # unused without HAS_FEW, but it must be defined
        if cta.HAS_FEW:
            few = load_few(cta, first, cta.BLOCK_F, A)
            few = (widen(few) * cta.few_scale).to(few.dtype)
        grad_normed, bias_sums = multiply(n, w, first, bias_sums, few, few_tile, ones, cta, FIRST)
        ring.wait_full(cta.x, n, w)
        norm_sums = normalise_backward(
            grad_normed, x_tile, grad_tile, mean, rstd, norm_sums, spare, ones, cta
        )
        fence_async_shared()
        # The tile that was written last goes first: so all threads' fences come before both copies.
        async_store(cta.grad_x_desc, [first, 0], grad_tile)
        async_store(cta.normed_desc, [first, 0], x_tile)
        if cta.HAS_FEW:
            weight_sum = mma(x_tile.permute((1, 0)), few_tile, weight_sum)
        tma.store_wait(0)
        mbarrier.arrive(cta.x.empty.index(w))
    write_sums(w, norm_sums, bias_sums, weight_sum, cta, FIRST)


@gluon.jit
def normed_projection_backward_hopper_kernel(
    grad_desc, weight_desc, few_desc, x_desc, through_desc, normed_desc, grad_x_desc,
    norm_weight_ptr, norm_bias_ptr, stats_ptr, sums_ptr, first_scale, few_scale, few_ptr,
    few_stride, few_stride_f, num_rows, num_tiles, C: gl.constexpr, D: gl.constexpr,
    F: gl.constexpr, SCALED: gl.constexpr, FIRST_BIASED: gl.constexpr, BLOCK_C: gl.constexpr,
    BLOCK_D: gl.constexpr, BLOCK_F: gl.constexpr, STAGES: gl.constexpr, HAS_THROUGH: gl.constexpr,
    HAS_FEW: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``sums`` (2 CTAs, 2 C + D - FIRST_BIASED + F C): of the groups' rows, for
    the norm's weight and bias, the projections' biases, and the weight of few outputs. Results of
    the first ``SCALED`` blocks of outputs were multiplied by ``first_scale``.
    """
    BLOCKS: gl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    FEW: gl.constexpr = few_block(F)
    ones, spare_smem = smem.ones(), smem.matrices(2, ROWS, PART)
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    norm_smem = smem.numbers(gl.float32, 2, BLOCK_C)
    c = gl.arange(0, BLOCK_C, layout=flat)
    norm_smem.index(0).store(load_vector(norm_weight_ptr, c, C))
    norm_smem.index(1).store(load_vector(norm_bias_ptr, c, C))
    grad, weight = ring.new(grad_desc, 2 * STAGES, 1), ring.new(weight_desc, STAGES, 2)
    few_weight, few_smem = smem.tile(few_desc), smem.matrices(2, ROWS, FEW)
    x = ring.new(x_desc, 2, 1)
    through = ring.along(x, through_desc, 2)
    # No barrier without a wait: its memory is reused, see `smem`.
    few_full = smem.barrier() if HAS_FEW else x.full.index(0)
    two_groups(Cta(
        norm_smem, stats_ptr, sums_ptr, first_scale, few_scale, few_ptr, gl.to_tensor(few_stride),
        gl.to_tensor(few_stride_f), normed_desc, grad_x_desc, grad, weight, few_desc, few_weight,
        few_full, few_smem, ones, spare_smem, x, through, gl.to_tensor(num_rows),
        gl.to_tensor(num_tiles), C, D, F, BLOCKS, SCALED, FIRST_BIASED, BLOCK_C, BLOCK_D, BLOCK_F,
        FEW, HAS_THROUGH, HAS_FEW,
    ), compute, load, GROUP_REGISTERS, gl.to_tensor(0), gl.to_tensor(1))  # fmt: skip


def backward(
    grad: Tensor | None,
    grad_few: Tensor | None,
    x: Tensor,
    norm: Norm,
    projections: Projections,
    through: Tensor | None,
    gradients: Gradients,
) -> Tensor:
    assert grad is not None
    rows, sizes, weight = rows_of(x), projections.sizes, projections.weight
    config = rows.config("normed_projection_backward_hopper", "sm_90", D=sizes.outputs, F=sizes.few)
    width, block = padded(sizes.channels), config["BLOCK_D"]
    num_tiles = triton.cdiv(rows.num_rows, 2 * ROWS.value)
    ctas = num_ctas(num_tiles, x.device)
    x_rows = rows.matrix()
    grad_rows = within_reach(grad.reshape(-1, sizes.outputs))
    grad_x, normed = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    normed_rows, grad_x_rows = (t.view(-1, sizes.channels) for t in (normed, grad_x))
    through_rows = grad_x_rows if through is None else within_reach(through.view_as(grad_x_rows))
    few_rows = grad_rows if grad_few is None else _one_stride(grad_few).matrix()
    num_sums = sizes.sums + sizes.few * sizes.channels
    sums = torch.empty(2 * ctas, num_sums, dtype=torch.float32, device=x.device)
    few_weight = weight if projections.few is None else projections.few
    scaled = projections.scaled_blocks(block)
    normed_projection_backward_hopper_kernel[(ctas,)](
        tiles_of(grad_rows, ROWS.value, block),
        tiles_of(weight if scaled else projections.scaled_weight(), block, width),
        tiles_of(few_weight, MAX_FEW_OUTPUTS, width), tiles_of(x_rows, ROWS.value, width),
        tiles_of(through_rows, ROWS.value, width), tiles_of(normed_rows, ROWS.value, width),
        tiles_of(grad_x_rows, ROWS.value, width), norm.weight, norm.bias, norm.stats, sums,
        projections.first_scale, projections.few_scale, few_rows, *few_rows.stride(), rows.num_rows,
        num_tiles,
        C=sizes.channels, D=sizes.outputs, F=sizes.few, SCALED=scaled,
        FIRST_BIASED=sizes.first_biased, BLOCK_C=width, BLOCK_F=MAX_FEW_OUTPUTS,
        HAS_THROUGH=through is not None, HAS_FEW=sizes.few > 0, **config,
    )  # fmt: skip
    # The CTAs' sums, added up, come first of all gradients.
    sum_rows(sums, x.dtype, gradients.flat[:num_sums])
    torch.mm(grad_rows.t(), normed_rows, out=gradients.weight)
    gradients.scale_first(projections)
    return grad_x


def _one_stride(x: Tensor) -> Rows:
    """Rows with one stride, copied where they have more."""
    rows = rows_of(x)
    return rows if rows.num_dims == 1 else rows_of(x.contiguous())
