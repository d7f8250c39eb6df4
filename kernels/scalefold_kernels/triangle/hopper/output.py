"""Output of triangle multiplication on Hopper GPUs; see `parts`, and `..kernel` for names."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from scalefold_kernels.hopper import mma_layout, widen
from scalefold_kernels.triangle.hopper.dropout import draw, dropped_out, no_bits, other_mask
from scalefold_kernels.triangle.hopper.parts import (
    GROUPS,
    LOADER_REGISTERS,
    TILE,
    barriers,
    columns,
    num_rounds,
    sigmoid,
    standardise,
    tile_of,
)


@gluon.jit
def load_tiles(args, C: gl.constexpr, STAGES: gl.constexpr):
    """The loader warp; each warp group has STAGES places of its own."""
    (
        weight_desc, product_desc, gate_desc, z_desc, weight_smem, product_smem, gate_smem, z_smem,
        weight_full, full, empty, z_empty, P,
    ) = args  # fmt: skip
    mbarrier.expect(weight_full, C * C * 2)
    tma.async_copy_global_to_shared(weight_desc, [0, 0], weight_full, weight_smem)
    for i in range(num_rounds(P)):
        phase = (i // STAGES) & 1
        for w in gl.static_range(GROUPS):
            first = tile_of(i, w)
            if first < P:
                slot = w * STAGES + i % STAGES
                mbarrier.wait(empty.index(slot), phase ^ 1)
                mbarrier.expect(full.index(slot), 3 * TILE * C * 2)
                tma.async_copy_global_to_shared(
                    product_desc, [0, first], full.index(slot), product_smem.index(slot)
                )
                tma.async_copy_global_to_shared(
                    gate_desc, [first, 0], full.index(slot), gate_smem.index(slot)
                )
                mbarrier.wait(z_empty.index(slot), phase ^ 1)
                tma.async_copy_global_to_shared(
                    z_desc, [first, 0], full.index(slot), z_smem.index(slot)
                )


@gluon.jit
def update(
    w, args, SHARED: gl.constexpr, C: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Warp group ``w``. The result takes the place of z in shared memory."""
    (
        out_desc, norm_weight, norm_bias, bias, dropped, mean, reciprocal,
        weight_smem, product_smem, gate_smem, z_smem, weight_full, full, empty, z_empty,
        P, ROWS, COLUMNS, eps,
    ) = args  # fmt: skip
    S: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    dtype: gl.constexpr = out_desc.dtype
    bits = no_bits()
    for i in range(num_rounds(P)):
        first = tile_of(i, w)
        if first < P:
            if SHARED is not None:
                if (i == 0) | other_mask(first, tile_of(i - 1, w), P, ROWS, COLUMNS, SHARED):
                    bits = draw(first, P, dropped, ROWS, COLUMNS, SHARED, C // 32)
            mbarrier.wait(weight_full, 0)
            slot = w * STAGES + i % STAGES
            position = first + gl.arange(0, TILE, layout=gl.SliceLayout(1, S))
            inside = position < P
            mbarrier.wait(full.index(slot), (i // STAGES) & 1)
            x = widen(product_smem.index(slot).permute((1, 0)).load(S))
            standard, mean_P, reciprocal_P = standardise(x, eps)
            gl.store(mean + position, mean_P, mask=inside)
            gl.store(reciprocal + position, reciprocal_P, mask=inside)
            normed = standard * columns(norm_weight, S)
            normed = (normed + columns(norm_bias, S)).to(dtype)
            normed = gl.convert_layout(normed, A)
            zero = gl.full([TILE, C], 0.0, gl.float32, S)
            weight = weight_smem.permute((1, 0))
            value = warpgroup_mma(normed, weight, zero, use_acc=False, is_async=True)
            opened = sigmoid(widen(gate_smem.index(slot).load(S)))
            mbarrier.arrive(empty.index(slot))
            value = warpgroup_mma_wait(0, [value])
            value = (value + columns(bias, S)) * opened
            if SHARED is not None:
                value = dropped_out(value, bits, 0, dropped[3])
            value += widen(z_smem.index(slot).load(S))
            z_smem.index(slot).store(value.to(dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [first, 0], z_smem.index(slot))
            tma.store_wait(0)
            mbarrier.arrive(z_empty.index(slot))


@gluon.jit(do_not_specialize=["layer"])
def output_forward_kernel(
    product_desc, gate_desc, z_desc, weight_desc, out_desc, norm_weight, norm_bias, bias,
    key, layer, threshold, factor, mean, reciprocal, P, ROWS, COLUMNS, eps,
    SHARED: gl.constexpr, C: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Result (P, Z), statistics (P,)."""
    dtype: gl.constexpr = z_desc.dtype
    slots: gl.constexpr = GROUPS * STAGES
    weight_smem = gl.allocate_shared_memory(dtype, [C, C], weight_desc.layout)
    product_smem = gl.allocate_shared_memory(dtype, [slots, C, TILE], product_desc.layout)
    gate_smem = gl.allocate_shared_memory(dtype, [slots, TILE, C], gate_desc.layout)
    z_smem = gl.allocate_shared_memory(dtype, [slots, TILE, C], z_desc.layout)
    full, empty, z_empty = barriers(slots, 1), barriers(slots, 1), barriers(slots, 1)
    weight_full = barriers(1, 1).index(0)
    fence_async_shared()
    P = gl.to_tensor(P)
    dropped = key, gl.to_tensor(layer), gl.to_tensor(threshold), factor
    load_args = (
        weight_desc, product_desc, gate_desc, z_desc, weight_smem, product_smem, gate_smem, z_smem,
        weight_full, full, empty, z_empty, P,
    )  # fmt: skip
    args = (
        out_desc, norm_weight, norm_bias, bias, dropped, mean, reciprocal,
        weight_smem, product_smem, gate_smem, z_smem, weight_full, full, empty, z_empty,
        P, gl.to_tensor(ROWS), gl.to_tensor(COLUMNS), eps,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (update, (gl.to_tensor(0), args, SHARED, C, STAGES)),
            (update, (gl.to_tensor(1), args, SHARED, C, STAGES)),
            (load_tiles, (load_args, C, STAGES)),
        ],
        [4, 1],
        [REGISTERS, LOADER_REGISTERS],
    )
