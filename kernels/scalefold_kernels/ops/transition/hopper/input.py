"""Second kernel of the backward: the gradient of the rows; see `parts`.

The loader brings pieces of the hidden channels' gradient with rows of ``up`` in a ring; at the end
of a tile come x and the result's gradient, one slot each for each of two warp groups, in the same
ring. A group multiplies along the hidden channels, does LayerNorm's backward on the chip and gives
back slots that only the other needs. Products with ones sum over rows.
"""

from collections import namedtuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait
from scalefold_kernels.gluon import ROWS, columns, mma_layout, opaque_zero, two_groups, widen, zeros
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.transition.hopper import parts
from scalefold_kernels.ops.transition.hopper.parts import DEPTH
from scalefold_kernels.ops.transition.op import Parameters, config_of
from scalefold_kernels.smem import SUMS
from scalefold_kernels.tma import num_ctas, tiles_of

WIDTH = gl.constexpr(32)
"""Channels for which the rows' gradient is computed at a time, to save registers."""

NARROW = gl.constexpr(16)
"""Channels that are summed at a time."""

Cta = namedtuple(
    "Cta",
    "norm_weight_ptr stats_ptr sums_ptr grad_x_desc left up x grad ones num_tiles num_rows "
    "grad_hidden_desc C H BLOCK_C UNROLL",
)


@gluon.jit
def load(cta):
    i = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        row = 2 * tile * ROWS
        for h in range(0, cta.H, DEPTH):
            boxes: gl.constexpr = smem.tile_bytes(cta.grad_hidden_desc, cta.grad_hidden_desc)
            slot = ring.wait_empty(cta.up, i, boxes + smem.tile_bytes(cta.up.desc))
            ready = cta.up.full.index(slot)
            for w in gl.static_range(2):
                at = [parts.piece_row(row + w * ROWS, h, cta.H), 0]
                async_load(cta.grad_hidden_desc, at, ready, cta.left.index(2 * slot + w))
            ring.copy(cta.up, slot, [h, 0])
            i += 1
        for w in gl.static_range(2):
            ring.load(cta.x, i, [row + w * ROWS, 0])
            ring.load(cta.grad, i + 1, [row + w * ROWS, 0])
            i += 2


@gluon.jit
def multiply(product, cta, i, w: gl.constexpr, STEPS: gl.constexpr):
    """Add the products of the ring's next slots; returns the next i, too.

    Not one for all slots of a tile: across iterations, ptxas (12.8) would wait after each step.
    """
    for step in gl.static_range(STEPS):
        slot = ring.wait_full(cta.up, i)
        rows = cta.left.index(2 * slot + w).permute((1, 0))
        product = mma(rows, cta.up.slots.index(slot), product, is_async=True)
        if step > 0:
            product = mma_wait(1, [product])
            mbarrier.arrive(cta.up.empty.index(ring.slot(cta.up, i - 1)))
        i += 1
    product = mma_wait(0, [product])
    mbarrier.arrive(cta.up.empty.index(ring.slot(cta.up, i - 1)))
    return product, i


@gluon.jit
def skip(cta, i):
    """Wait for two slots that only the other group uses, and release them; returns the next i."""
    for _ in gl.static_range(2):
        mbarrier.arrive(cta.up.empty.index(ring.wait_full(cta.up, i)))
        i += 1
    return i


@gluon.jit
def sums_over_channels(grad_normed, x_tile, mean, cta):
    """Sum the gradient of x_hat, and its product with x - mean, over the channels of each row."""
    L: gl.constexpr = mma_layout(NARROW)
    column = gl.arange(0, NARROW, layout=gl.SliceLayout(0, L))
    mean = gl.convert_layout(mean, gl.SliceLayout(1, L))
    grads = columns(grad_normed, NARROW)
    total = zeros(ROWS, NARROW)
    product = total
    for part in gl.static_range(cta.BLOCK_C // NARROW):
        c = part * NARROW + column
        norm_weight = load_vector(cta.norm_weight_ptr, c, cta.C)
        grad = grads[part] * norm_weight[None, :]
        x = widen(x_tile.slice(part * NARROW, NARROW, dim=1).load(L))
        total += grad
        product += grad * (x - mean[:, None])
    return gl.sum(total, 1), gl.sum(product, 1)


@gluon.jit
def normalise_backward(grad_normed, x_tile, grad_tile, row, cta):
    """Add LayerNorm's gradient to the residual's in its tile.

    The tile of rows is overwritten by the terms of the gradient of the norm's weight.
    """
    L: gl.constexpr = mma_layout(WIDTH)
    ROW: gl.constexpr = gl.SliceLayout(1, L)
    r = row + gl.arange(0, ROWS, layout=ROW)
    mean = gl.load(cta.stats_ptr + r, mask=r < cta.num_rows, other=0.0)
    rstd = gl.load(cta.stats_ptr + cta.num_rows + r, mask=r < cta.num_rows, other=0.0)
    mean_grad, mean_product = sums_over_channels(grad_normed, x_tile, mean, cta)
    mean_grad = gl.convert_layout(mean_grad, ROW) * (1.0 / cta.C)
    mean_product = gl.convert_layout(mean_product, ROW) * rstd * (1.0 / cta.C)
    mean_rstd = mean * rstd
    zero = opaque_zero(row, 31)
    grads = columns(grad_normed, WIDTH)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, L))
    for part in gl.static_range(cta.BLOCK_C // WIDTH):
        c = part * WIDTH + column
        norm_weight = load_vector(cta.norm_weight_ptr + zero, c, cta.C)
        x_piece = x_tile.slice(part * WIDTH, WIDTH, dim=1)
        piece = grad_tile.slice(part * WIDTH, WIDTH, dim=1)
        x, residual = x_piece.load(L), piece.load(L)
        x_hat = widen(x) * rstd[:, None] - mean_rstd[:, None]
        grad = grads[part] * norm_weight[None, :] - mean_grad[:, None]
        grad -= x_hat * mean_product[:, None]
        x_piece.store((grads[part] * x_hat).to(grad_tile.dtype))
        piece.store((grad * rstd[:, None] + widen(residual)).to(grad_tile.dtype))


@gluon.jit
def compute(w: gl.constexpr, cta):
    SUM: gl.constexpr = mma_layout(SUMS)
    total = zeros(cta.BLOCK_C, SUMS)
    STEPS: gl.constexpr = (cta.H + DEPTH - 1) // DEPTH
    i = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        row = (2 * tile + w) * ROWS
        product = zeros(ROWS, cta.BLOCK_C)
        for _ in range(STEPS // cta.UNROLL):
            product, i = multiply(product, cta, i, w, cta.UNROLL)
        if STEPS % cta.UNROLL > 0:
            product, i = multiply(product, cta, i, w, STEPS % cta.UNROLL)
        if w == 1:
            i = skip(cta, i)
        x_slot, slot = ring.wait_full(cta.x, i), ring.wait_full(cta.grad, i + 1)
        i += 2
        zeroth = opaque_zero(i)
        grad_tile = cta.grad.slots.index(slot)
        total = mma(grad_tile.permute((1, 0)), cta.ones.index(1 + zeroth), total)
        normalise_backward(product, cta.x.slots.index(x_slot), grad_tile, row, cta)
        fence_async_shared()
        async_store(cta.grad_x_desc, [row, 0], grad_tile)
        terms = cta.x.slots.index(x_slot).permute((1, 0))
        total = mma(terms, cta.ones.index(zeroth), total)
        mbarrier.arrive(cta.x.empty.index(x_slot))
        tma.store_wait(0)
        mbarrier.arrive(cta.grad.empty.index(slot))
        if w == 0:
            i = skip(cta, i)
    which = gl.arange(0, SUMS, layout=gl.SliceLayout(0, SUM))[None, :]
    # Else these channels, too, would be computed before the loop.
    c = opaque_zero(i) + gl.arange(0, cta.BLOCK_C, layout=gl.SliceLayout(1, SUM))[:, None]
    part = which * 2 * gl.num_programs(0) + 2 * gl.program_id(0) + w
    gl.store(cta.sums_ptr + part * cta.C + c, total, mask=(which < 2) & (c < cta.C))


@gluon.jit
def transition_input_hopper_kernel(
    grad_hidden_desc, up_desc, x_desc, grad_desc, grad_x_desc, norm_weight_ptr, stats_ptr, sums_ptr,
    num_tiles, num_rows, C: gl.constexpr, H: gl.constexpr, BLOCK_C: gl.constexpr,
    STAGES: gl.constexpr, UNROLL: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``sums`` (2, 2 CTAs, C) over each group's rows."""
    ones = parts.new_columns(2)
    left = smem.tiles(grad_hidden_desc, 2 * STAGES)
    up = ring.new(up_desc, STAGES, 2)
    x, grad = ring.beside(up, x_desc), ring.beside(up, grad_desc)
    two_groups(Cta(
        norm_weight_ptr, stats_ptr, sums_ptr, grad_x_desc, left, up, x, grad, ones,
        gl.to_tensor(num_tiles), gl.to_tensor(num_rows), grad_hidden_desc, C, H, BLOCK_C, UNROLL,
    ), compute, load, GROUP_REGISTERS)  # fmt: skip


def input_gradient(
    grad_hidden: Tensor, x_RC: Tensor, stats_2R: Tensor, grad_RC: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, the residual's included, and ``sums_over_rows``.

    These are partial sums over rows (2, parts, C) in float32: of the terms of the norm's weight's
    gradient, and of ``grad``.
    """
    (num_rows, channels), num_hidden = grad_RC.shape, parameters.up_weight.shape[0]
    config = config_of("transition_input_hopper", grad_RC, num_hidden, "sm_90")
    width = parts.width_of(channels)
    num_tiles = triton.cdiv(num_rows, 2 * ROWS.value)
    ctas = num_ctas(num_tiles, grad_RC.device)
    grad_x = x_RC.new_empty(num_rows, channels)
    sums = torch.empty(2, 2 * ctas, channels, dtype=torch.float32, device=grad_RC.device)
    transition_input_hopper_kernel[(ctas,)](
        tiles_of(grad_hidden, ROWS.value, DEPTH.value),
        tiles_of(parameters.up_weight, DEPTH.value, width), tiles_of(x_RC, ROWS.value, width),
        tiles_of(grad_RC, ROWS.value, width), tiles_of(grad_x, ROWS.value, width),
        parameters.norm_weight, stats_2R, sums, num_tiles, num_rows,
        C=channels, H=num_hidden, BLOCK_C=width, **config,
    )  # fmt: skip
    return grad_x, sums
