"""Gradients of the output on Hopper GPUs; see `parts`, and `..triton` for names.

The loader brings tiles to slots of each of two warp groups. What these make of the gradient and of
the product stays there, announced on ``ready``. A third warp group adds up the weight's gradient
from there, in registers over all tiles of the CTA; a slot is empty when both are done. First, the
third works LayerNorm's weight and bias into the projection's (``folded``): a projection of
``x_hat * norm_weight + norm_bias`` is one of ``x_hat``.
"""

from collections import namedtuple
from collections.abc import Sequence

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait, reinterpret
from scalefold_kernels.dropout.mask import drawing
from scalefold_kernels.gluon import ROWS, mma_layout, widen, zeros
from scalefold_kernels.ops.norm.weights import finish
from scalefold_kernels.ops.triangle.arguments import OutputArguments, Sizes
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.dropout import draw, dropped_out, no_bits, other_mask
from scalefold_kernels.ops.triangle.hopper.parts import GROUPS
from scalefold_kernels.smem import SUMS

LOADER_REGISTERS = gl.constexpr(24)
"""Registers of the loader's thread, the fewest that there are; the third group needs the others."""

SUM_REGISTERS = gl.constexpr(168)
"""Registers of a thread of the third group, which holds the sums."""

Cta = namedtuple(
    "Cta",
    "weight_desc gate_desc grad_out_desc grad_product_desc grad_gate_desc mean_ptr rstd_ptr "
    "norm_weight_ptr norm_bias_ptr bias_ptr dropped partial_ptr partial_bias_ptr weight bias_smem "
    "ones product gate grad_out weight_full folded ready num_positions size_i size_j SHARED C "
    "GROUP_REGISTERS",
)


@gluon.jit
def load(cta):
    HALVES: gl.constexpr = cta.C // 64
    bytes: gl.constexpr = smem.tile_bytes(cta.product.desc) + HALVES * smem.tile_bytes(
        cta.gate_desc, cta.grad_out_desc
    )
    parts.load_weight(cta.weight_desc, cta.weight_full, cta.weight)
    for i in range(parts.num_rounds(cta.num_positions)):
        for w in gl.static_range(GROUPS):
            first = parts.first_position(i, w)
            if first < cta.num_positions:
                slot = ring.wait_empty(cta.product, i, bytes, w)
                ring.copy(cta.product, slot, [0, first])
                full = cta.product.full.index(slot)
                for half in gl.static_range(HALVES):
                    at = [first, half * 64]
                    part = slot * HALVES + half
                    async_load(cta.gate_desc, at, full, cta.gate.index(part))
                    async_load(cta.grad_out_desc, at, full, cta.grad_out.index(part))


@gluon.jit
def differentiate(w, cta):
    """Warp group ``w``: gradients of gate and product."""
    C: gl.constexpr = cta.C
    HALVES: gl.constexpr = C // 64
    WHOLE: gl.constexpr = mma_layout(C)
    HALF: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, WHOLE, 2)
    dtype: gl.constexpr = cta.grad_gate_desc.dtype
    whole: gl.constexpr = [cta.product.slots.shape[0], C, ROWS]
    transposed_smem = reinterpret(cta.gate, dtype, whole, cta.grad_product_desc.layout)
    bits = no_bits()
    i = gl.to_tensor(0)
    first = parts.first_position(i, w)
    next_mean = parts.load_column(cta.mean_ptr, first, cta.num_positions, WHOLE)
    next_rstd = parts.load_column(cta.rstd_ptr, first, cta.num_positions, WHOLE)
    while first < cta.num_positions:
        if cta.SHARED is not None:
            sizes = cta.num_positions, cta.size_i, cta.size_j
            if (i == 0) | other_mask(first, parts.first_position(i - 1, w), *sizes, cta.SHARED):
                bits = draw(first, cta.dropped, *sizes, cta.SHARED, C // 32)
        mean, rstd = next_mean, next_rstd
        slot = ring.wait_full(cta.product, i, w)
        product = cta.product.slots.index(slot).permute((1, 0))
        x_hat = (widen(product.load(WHOLE)) - mean[:, None]) * rstd[:, None]
        product.store(x_hat.to(dtype))
        fence_async_shared()
        # Only now, since the copy of the tile before takes its time.
        tma.store_wait(0)
        if i > 0:
            mbarrier.arrive(cta.product.empty.index(ring.slot(cta.product, i - 1, w)))
        mbarrier.wait(cta.folded, 0)
        grad_hat = zeros(ROWS, C)
        for half in range(HALVES):
            weight = cta.weight.index(half)
            gate = cta.gate.index(slot * HALVES + half)
            grad_out = cta.grad_out.index(slot * HALVES + half)
            value = zeros(ROWS, 64)
            value = mma(product, weight.permute((1, 0)), value, use_acc=False, is_async=True)
            grad = widen(grad_out.load(HALF))
            if cta.SHARED is not None:
                grad = dropped_out(grad, bits, half * 64, cta.dropped[3])
            value = mma_wait(0, [value])
            value += cta.bias_smem.index(half).load(gl.SliceLayout(0, HALF))[None, :]
            opened = parts.sigmoid(widen(gate.load(HALF)))
            value *= 1.0 - opened
            grad *= opened
            gate.store((grad * value).to(dtype))
            grad = grad.to(dtype)
            grad_out.store(grad)
            fence_async_shared()
            async_store(cta.grad_gate_desc, [first, half * 64], gate)
            grad = gl.convert_layout(grad, A)
            grad_hat = mma(grad, weight, grad_hat, is_async=True)
            # Under the product: after the loop, which thread announces would be kept, and spilled.
            mbarrier.arrive(cta.ready.index(slot), pred=half == HALVES - 1)
            grad_hat = mma_wait(0, [grad_hat])
        following = parts.first_position(i + 1, w)
        next_mean = parts.load_column(cta.mean_ptr, following, cta.num_positions, WHOLE)
        next_rstd = parts.load_column(cta.rstd_ptr, following, cta.num_positions, WHOLE)
        x_hat = widen(product.load(WHOLE))
        mean_product = parts.row_sum(grad_hat * x_hat) * (1.0 / C)
        mean_grad = parts.row_sum(grad_hat) * (1.0 / C)
        grad_x = grad_hat - mean_grad[:, None] - x_hat * mean_product[:, None]
        grad_x = (grad_x * rstd[:, None]).to(dtype)
        tma.store_wait(0)
        transposed = transposed_smem.index(slot)
        transposed.permute((1, 0)).store(grad_x)
        fence_async_shared()
        async_store(cta.grad_product_desc, [0, first], transposed)
        i += 1
        first = parts.first_position(i, w)
    tma.store_wait(0)


@gluon.jit
def fold(cta):
    """Work LayerNorm's weight into the weight, once it is there, and its bias into the bias."""
    C: gl.constexpr = cta.C
    WHOLE: gl.constexpr = mma_layout(C)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, WHOLE))
    # They come from memory, too: while the weight does.
    norm_weight = parts.load_raw_row(cta.norm_weight_ptr, WHOLE)
    norm_bias = parts.load_raw_row(cta.norm_bias_ptr, WHOLE)
    first_bias = gl.load(cta.bias_ptr + row)
    last_bias = gl.load(cta.bias_ptr + C - 64 + row)
    mbarrier.wait(cta.weight_full, 0)
    for half in gl.static_range(C // 64):
        weight = widen(cta.weight.index(half).load(WHOLE))
        added = first_bias if half == 0 else last_bias
        added = added.to(gl.float32) + parts.row_sum(weight * norm_bias.to(gl.float32))
        cta.bias_smem.index(half).store(added)
        cta.weight.index(half).store((weight * norm_weight.to(gl.float32)).to(cta.weight.dtype))
    fence_async_shared()


@gluon.jit
def add_up(cta):
    """The warp group of the weight's gradient."""
    fold(cta)
    mbarrier.arrive(cta.folded)
    C: gl.constexpr = cta.C
    WHOLE: gl.constexpr = mma_layout(C)
    ONES: gl.constexpr = mma_layout(SUMS)
    whole: gl.constexpr = [cta.product.slots.shape[0], ROWS, C]
    grad_out = reinterpret(cta.grad_out, cta.grad_out.dtype, whole, cta.grad_out.layout)
    products = zeros(C, C)
    sums = zeros(C, SUMS)
    for i in range(parts.num_rounds(cta.num_positions)):
        for w in range(GROUPS):
            if parts.first_position(i, w) < cta.num_positions:
                slot = ring.slot(cta.product, i, w)
                mbarrier.wait(cta.ready.index(slot), ring.phase(cta.product, i, w))
                x_hat = cta.product.slots.index(slot).permute((1, 0))
                grad = grad_out.index(slot).permute((1, 0))
                products = mma(grad, x_hat, products, is_async=True)
                sums = mma(grad, cta.ones, sums, is_async=True)
                products, sums = mma_wait(0, [products, sums])
                mbarrier.arrive(cta.product.empty.index(slot))
    row = gl.arange(0, C, layout=gl.SliceLayout(1, WHOLE))
    column = gl.arange(0, C, layout=gl.SliceLayout(0, WHOLE))
    at = gl.program_id(0) * C * C + row[:, None] * C + column[None, :]
    gl.store(cta.partial_ptr + at, products)
    row = gl.arange(0, C, layout=gl.SliceLayout(1, ONES))
    sums = gl.sum(sums, 1) * (1.0 / SUMS)
    gl.store(cta.partial_bias_ptr + gl.program_id(0) * C + row, sums)


@gluon.jit
def run_partitions(cta):
    """Three warp groups and a loader warp."""
    fence_async_shared()
    gl.warp_specialize(
        [
            (differentiate, (gl.to_tensor(0), cta)),
            (differentiate, (gl.to_tensor(1), cta)),
            (add_up, (cta,)),
            (load, (cta,)),
        ],
        [4, 4, 1],
        [cta.GROUP_REGISTERS, SUM_REGISTERS, LOADER_REGISTERS],
    )


@gluon.jit(do_not_specialize=["layer"])
def triangle_output_backward_hopper_kernel(
    grad_out_desc, product_desc, gate_desc, weight_desc, grad_product_desc, grad_gate_desc,
    mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr, bias_ptr, key_ptr, layer, threshold, scale,
    partial_ptr, partial_bias_ptr, num_positions, size_i, size_j, SHARED: gl.constexpr,
    C: gl.constexpr, STAGES: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """grad_product (C, P), grad_gate (P, C); partial (CTAs, C, C), partial_bias (CTAs, C)."""
    HALVES: gl.constexpr = C // 64
    slots: gl.constexpr = GROUPS * STAGES
    bias_smem = smem.numbers(gl.float32, HALVES, 64)
    ones = smem.ones().index(0)
    product = ring.new(product_desc, slots, 2)
    barriers = smem.barriers(2, 1)
    dropped = key_ptr, gl.to_tensor(layer), gl.to_tensor(threshold), scale
    run_partitions(Cta(
        weight_desc, gate_desc, grad_out_desc, grad_product_desc, grad_gate_desc, mean_ptr,
        rstd_ptr, norm_weight_ptr, norm_bias_ptr, bias_ptr, dropped, partial_ptr, partial_bias_ptr,
        smem.tiles(weight_desc, HALVES), bias_smem, ones, product,
        smem.tiles(gate_desc, slots * HALVES), smem.tiles(grad_out_desc, slots * HALVES),
        barriers.index(0), barriers.index(1), smem.barriers(slots, 1), gl.to_tensor(num_positions),
        gl.to_tensor(size_i), gl.to_tensor(size_j), SHARED, C, GROUP_REGISTERS,
    ))  # fmt: skip


def output_backward(
    sizes: Sizes, given: OutputArguments, stats: Sequence[Tensor], grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    product, gate, weights, dropout = given
    grad_product, grad_gate = torch.empty_like(product), torch.empty_like(gate)
    ctas, channels = parts.num_ctas(sizes, gate), sizes.pair
    partial = gate.new_empty(ctas, channels, channels, dtype=torch.float32)
    partial_bias = partial.new_empty(ctas, channels)
    triangle_output_backward_hopper_kernel[(ctas,)](
        parts.row_tiles(grad_out, 64), parts.column_tiles(product, channels),
        parts.row_tiles(gate, 64), parts.weight_tiles(weights.matrix),
        parts.column_tiles(grad_product, channels), parts.row_tiles(grad_gate, 64),
        *stats, weights.norm_weight, weights.norm_bias, weights.bias,
        *drawing(dropout), partial, partial_bias, sizes.positions, *gate.shape[1:3],
        SHARED=None if dropout is None else dropout.shared, C=channels, STAGES=2,
        GROUP_REGISTERS=160,
    )  # fmt: skip
    *norm, matrix, _ = weights
    flat_grad = finish(partial, partial_bias, *norm, [matrix])
    return grad_product, grad_gate, flat_grad
