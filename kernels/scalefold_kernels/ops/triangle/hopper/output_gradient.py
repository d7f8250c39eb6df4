"""Gradients of the output on Hopper GPUs; see `parts`, and `..triton` for names.

Two warp groups work on tiles of their own. What they make of the gradient and of the product stays
where these came to in shared memory, and a third warp group adds up the weight's gradient from
there, in registers over all tiles of the CTA.

The normalisation's scale and shift are worked into weight and bias first: a projection of
``standard * scale + shift`` is one of ``standard``.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait, reinterpret
from scalefold_kernels.dropout.mask import drawing
from scalefold_kernels.gluon import mma_layout, new_barriers, widen
from scalefold_kernels.ops.triangle.arguments import OutputArguments, OutputKept, Sizes
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.dropout import draw, dropped_out, no_bits, other_mask
from scalefold_kernels.ops.triangle.hopper.parts import GROUPS, TILE
from scalefold_kernels.ops.triangle.triton.weights import finish

SUM_COLUMNS = gl.constexpr(8)
"""The narrowest matrix product: with a matrix of ones, it sums the gradient over positions."""

LOADER_REGISTERS = gl.constexpr(24)
"""Registers of the loader's thread, the fewest that there are; the third group needs the others."""

SUM_REGISTERS = gl.constexpr(168)
"""Registers of a thread of the third group, which holds the sums."""


@gluon.jit
def load_tiles(args, C: gl.constexpr, STAGES: gl.constexpr):
    """The loader warp; each warp group has STAGES places of its own."""
    (
        d_out_desc, product_desc, gate_desc, weight_desc, d_out_smem, product_smem, gate_smem,
        weight_smem, weight_full, full, empty, P,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    mbarrier.expect(weight_full, C * C * 2)
    for half in gl.static_range(HALVES):
        async_load(weight_desc, [half * 64, 0], weight_full, weight_smem.index(half))
    for i in range(parts.num_rounds(P)):
        for w in gl.static_range(GROUPS):
            first = parts.tile_of(i, w)
            if first < P:
                slot = w * STAGES + i % STAGES
                bar = full.index(slot)
                mbarrier.wait(empty.index(slot), ((i // STAGES) & 1) ^ 1)
                mbarrier.expect(bar, 3 * TILE * C * 2)
                async_load(product_desc, [0, first], bar, product_smem.index(slot))
                for half in gl.static_range(HALVES):
                    at = [first, half * 64]
                    place = slot * HALVES + half
                    async_load(gate_desc, at, bar, gate_smem.index(place))
                    async_load(d_out_desc, at, bar, d_out_smem.index(place))


@gluon.jit
def differentiate(
    w, args, SHARED: gl.constexpr, C: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Warp group ``w``: gradients of gate and product."""
    (
        d_product_desc, d_gate_desc, mean, reciprocal, dropped, weight_smem, bias_smem,
        d_out_smem, product_smem, gate_smem, folded, full, ready, empty, P, ROWS, COLUMNS,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    S: gl.constexpr = mma_layout(C)
    H: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    dtype: gl.constexpr = d_gate_desc.dtype
    whole: gl.constexpr = [GROUPS * STAGES, C, TILE]
    transposed_smem = reinterpret(gate_smem, dtype, whole, d_product_desc.layout)
    bits = no_bits()
    i = gl.to_tensor(0)
    first = parts.tile_of(i, w)
    next_mean = parts.by_position(mean, first, P, S)
    next_reciprocal = parts.by_position(reciprocal, first, P, S)
    while first < P:
        slot = w * STAGES + i % STAGES
        if SHARED is not None:
            if (i == 0) | other_mask(first, parts.tile_of(i - 1, w), P, ROWS, COLUMNS, SHARED):
                bits = draw(first, P, dropped, ROWS, COLUMNS, SHARED, C // 32)
        mean_P, reciprocal_P = next_mean, next_reciprocal
        mbarrier.wait(full.index(slot), (i // STAGES) & 1)
        product = product_smem.index(slot).permute((1, 0))
        standard = (widen(product.load(S)) - mean_P[:, None]) * reciprocal_P[:, None]
        product.store(standard.to(dtype))
        fence_async_shared()
        # Only now, since the copy of the tile before takes its time.
        tma.store_wait(0)
        if i > 0:
            mbarrier.arrive(empty.index(w * STAGES + (i - 1) % STAGES))
        mbarrier.wait(folded, 0)
        d_standard = gl.full([TILE, C], 0.0, gl.float32, S)
        for half in range(HALVES):
            weight = weight_smem.index(half)
            gate = gate_smem.index(slot * HALVES + half)
            d_out = d_out_smem.index(slot * HALVES + half)
            value = gl.full([TILE, 64], 0.0, gl.float32, H)
            value = mma(product, weight.permute((1, 0)), value, use_acc=False, is_async=True)
            gradient = widen(d_out.load(H))
            if SHARED is not None:
                gradient = dropped_out(gradient, bits, half * 64, dropped[3])
            value = mma_wait(0, [value])
            value += bias_smem.index(half).load(gl.SliceLayout(0, H))[None, :]
            opened = parts.sigmoid(widen(gate.load(H)))
            value *= 1.0 - opened
            gradient *= opened
            gate.store((gradient * value).to(dtype))
            gradient = gradient.to(dtype)
            d_out.store(gradient)
            fence_async_shared()
            async_store(d_gate_desc, [first, half * 64], gate)
            gradient = gl.convert_layout(gradient, A)
            d_standard = mma(gradient, weight, d_standard, is_async=True)
            # Under the product: after the loop, which thread announces would be kept, and spilled.
            mbarrier.arrive(ready.index(slot), pred=half == HALVES - 1)
            d_standard = mma_wait(0, [d_standard])
        following = parts.tile_of(i + 1, w)
        next_mean = parts.by_position(mean, following, P, S)
        next_reciprocal = parts.by_position(reciprocal, following, P, S)
        standard = widen(product.load(S))
        along = parts.row_sum(d_standard * standard) * (1.0 / C)
        average = parts.row_sum(d_standard) * (1.0 / C)
        d_x = d_standard - average[:, None] - standard * along[:, None]
        d_x = (d_x * reciprocal_P[:, None]).to(dtype)
        tma.store_wait(0)
        transposed = transposed_smem.index(slot)
        transposed.permute((1, 0)).store(d_x)
        fence_async_shared()
        async_store(d_product_desc, [0, first], transposed)
        i += 1
        first = parts.tile_of(i, w)
    tma.store_wait(0)


@gluon.jit
def fold(norm_weight, norm_bias, bias, weight_smem, bias_smem, weight_full, C: gl.constexpr):
    """Work scale and shift into the weight, once it is there, and into the bias."""
    S: gl.constexpr = mma_layout(C)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, S))
    # They come from memory, too: while the weight does.
    scale = parts.raw_columns(norm_weight, S)
    shift = parts.raw_columns(norm_bias, S)
    first_bias = gl.load(bias + row)
    last_bias = gl.load(bias + C - 64 + row)
    mbarrier.wait(weight_full, 0)
    for half in gl.static_range(C // 64):
        weight = widen(weight_smem.index(half).load(S))
        added = first_bias if half == 0 else last_bias
        added = added.to(gl.float32) + parts.row_sum(weight * shift.to(gl.float32))
        bias_smem.index(half).store(added)
        weight_smem.index(half).store((weight * scale.to(gl.float32)).to(weight_smem.dtype))
    fence_async_shared()


@gluon.jit
def add_up(args, C: gl.constexpr, STAGES: gl.constexpr):
    """The warp group of the weight's gradient."""
    (
        norm_weight, norm_bias, bias, weight_smem, bias_smem, weight_full, folded,
        partial, partial_bias, d_out_smem, product_smem, ones_smem, ready, empty, P,
    ) = args  # fmt: skip
    fold(norm_weight, norm_bias, bias, weight_smem, bias_smem, weight_full, C)
    mbarrier.arrive(folded)
    S: gl.constexpr = mma_layout(C)
    ONES: gl.constexpr = mma_layout(SUM_COLUMNS)
    whole: gl.constexpr = [GROUPS * STAGES, TILE, C]
    d_out_smem = reinterpret(d_out_smem, d_out_smem.dtype, whole, d_out_smem.layout)
    products = gl.full([C, C], 0.0, gl.float32, S)
    sums = gl.full([C, SUM_COLUMNS], 0.0, gl.float32, ONES)
    for i in range(parts.num_rounds(P)):
        for w in range(GROUPS):
            if parts.tile_of(i, w) < P:
                slot = w * STAGES + i % STAGES
                mbarrier.wait(ready.index(slot), (i // STAGES) & 1)
                standard = product_smem.index(slot).permute((1, 0))
                gradient = d_out_smem.index(slot).permute((1, 0))
                products = mma(gradient, standard, products, is_async=True)
                sums = mma(gradient, ones_smem, sums, is_async=True)
                products, sums = mma_wait(0, [products, sums])
                mbarrier.arrive(empty.index(slot))
    row = gl.arange(0, C, layout=gl.SliceLayout(1, S))
    column = gl.arange(0, C, layout=gl.SliceLayout(0, S))
    gl.store(partial + gl.program_id(0) * C * C + row[:, None] * C + column[None, :], products)
    row = gl.arange(0, C, layout=gl.SliceLayout(1, ONES))
    sums = gl.sum(sums, 1) * (1.0 / SUM_COLUMNS)
    gl.store(partial_bias + gl.program_id(0) * C + row, sums)


@gluon.jit(do_not_specialize=["layer"])
def output_backward_kernel(
    d_out_desc, product_desc, gate_desc, weight_desc, d_product_desc, d_gate_desc,
    mean, reciprocal, norm_weight, norm_bias, bias,
    key, layer, threshold, factor, partial, partial_bias, P, ROWS, COLUMNS,
    SHARED: gl.constexpr, C: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """d_product (C, P), d_gate (P, C); partial (CTAs, C, C), partial_bias (CTAs, C)."""
    HALVES: gl.constexpr = C // 64
    dtype: gl.constexpr = gate_desc.dtype
    slots: gl.constexpr = GROUPS * STAGES
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    weight_smem = gl.allocate_shared_memory(dtype, [HALVES, 64, C], weight_desc.layout)
    product_smem = gl.allocate_shared_memory(dtype, [slots, C, TILE], product_desc.layout)
    gate_smem = gl.allocate_shared_memory(dtype, [slots * HALVES, TILE, 64], gate_desc.layout)
    d_out_smem = gl.allocate_shared_memory(dtype, [slots * HALVES, TILE, 64], gate_desc.layout)
    bias_smem = gl.allocate_shared_memory(gl.float32, [HALVES, 64], flat)
    ones_layout: gl.constexpr = gl.NVMMASharedLayout(0, 16, 2)
    ones_smem = gl.allocate_shared_memory(dtype, [TILE, SUM_COLUMNS], ones_layout)
    full, ready, empty = new_barriers(slots, 1), new_barriers(slots, 1), new_barriers(slots, 2)
    more = new_barriers(2, 1)
    weight_full, folded = more.index(0), more.index(1)
    ones = gl.full([TILE, SUM_COLUMNS], 1.0, gl.float32, mma_layout(SUM_COLUMNS))
    ones_smem.store(ones.to(dtype))
    fence_async_shared()

    P = gl.to_tensor(P)
    dropped = key, gl.to_tensor(layer), gl.to_tensor(threshold), factor
    load_args = (
        d_out_desc, product_desc, gate_desc, weight_desc, d_out_smem, product_smem, gate_smem,
        weight_smem, weight_full, full, empty, P,
    )  # fmt: skip
    args = (
        d_product_desc, d_gate_desc, mean, reciprocal, dropped, weight_smem, bias_smem,
        d_out_smem, product_smem, gate_smem, folded, full, ready, empty,
        P, gl.to_tensor(ROWS), gl.to_tensor(COLUMNS),
    )  # fmt: skip
    sum_args = (
        norm_weight, norm_bias, bias, weight_smem, bias_smem, weight_full, folded,
        partial, partial_bias, d_out_smem, product_smem, ones_smem, ready, empty, P,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (differentiate, (gl.to_tensor(0), args, SHARED, C, STAGES)),
            (differentiate, (gl.to_tensor(1), args, SHARED, C, STAGES)),
            (add_up, (sum_args, C, STAGES)),
            (load_tiles, (load_args, C, STAGES)),
        ],
        [4, 4, 1],
        [REGISTERS, SUM_REGISTERS, LOADER_REGISTERS],
    )


def output_backward(
    sizes: Sizes, given: OutputArguments, kept: OutputKept, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of product and gate; of the parameters, one after the other in one vector."""
    product, gate, weights, dropout = given
    d_product, d_gate = torch.empty_like(product), torch.empty_like(gate)
    ctas, channels = parts.num_ctas(sizes, gate), sizes.pair
    partial = gate.new_empty(ctas, channels, channels, dtype=torch.float32)
    partial_bias = partial.new_empty(ctas, channels)
    output_backward_kernel[(ctas,)](
        parts.row_tiles(d_out, 64), parts.column_tiles(product, channels),
        parts.row_tiles(gate, 64), parts.weight_tiles(weights.matrix),
        parts.column_tiles(d_product, channels), parts.row_tiles(d_gate, 64),
        kept.mean, kept.reciprocal, weights.scale, weights.shift, weights.bias,
        *drawing(dropout), partial, partial_bias, sizes.positions, *gate.shape[1:3],
        SHARED=None if dropout is None else dropout.shared, C=channels, STAGES=2, REGISTERS=160,
    )  # fmt: skip
    scale, shift, matrix, _ = weights
    gradients = finish(sizes, partial, partial_bias, scale, shift, [matrix])
    return d_product, d_gate, gradients
