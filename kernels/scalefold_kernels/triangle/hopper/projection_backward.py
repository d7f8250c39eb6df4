"""Gradient of the projection's input on Hopper GPUs; see `parts`, and `..kernel` for names.

Two warp groups work on 64 positions each and share the weights, which are brought anew for every
tile, as all of them would leave no room: 64 channels of an operand at a time, in a ring of slots.
Gradients of value and logit take the places of what they are made of.
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

from scalefold_kernels.hopper import mma_layout, widen
from scalefold_kernels.triangle.hopper.parts import (
    GROUPS,
    LOADER_REGISTERS,
    LOG2E,
    TILE,
    barriers,
    by_position,
    columns,
    open_gate,
    row_sum,
)

SLOTS = gl.constexpr(4)
"""Of each ring: blocks of weights; of each warp group, blocks of an operand or its gradient."""

WHOLE = gl.constexpr(3)
"""Tiles with all channels, of each warp group: z, and its gradient elsewhere."""


@gluon.jit
def load_block(
    n, weight_desc, desc, half, start, TURNED: gl.constexpr, C: gl.constexpr,
    weight_smem, block_smem, weight_full, weight_empty, block_full, block_empty,
):  # fmt: skip
    """Number ``n`` of both rings: 64 rows of a weight, and 64 channels for each warp group."""
    slot = n % SLOTS
    phase = (n // SLOTS) & 1
    mbarrier.wait(weight_empty.index(slot), phase ^ 1)
    mbarrier.expect(weight_full.index(slot), 64 * C * 2)
    tma.async_copy_global_to_shared(
        weight_desc, [half * 64, 0], weight_full.index(slot), weight_smem.index(slot)
    )
    for w in gl.static_range(GROUPS):
        full = block_full.index(w * SLOTS + slot)
        block = block_smem.index(w * SLOTS + slot)
        mbarrier.wait(block_empty.index(w * SLOTS + slot), phase ^ 1)
        mbarrier.expect(full, 64 * TILE * 2)
        if TURNED:
            tma.async_copy_global_to_shared(desc, [half * 64, start + w * TILE], full, block)
        else:
            tma.async_copy_global_to_shared(desc, [start + w * TILE, half * 64], full, block)


@gluon.jit
def load_whole(n, desc, start, C: gl.constexpr, whole_smem, whole_full, whole_empty):
    """Number ``n`` of the tiles with all channels, for each warp group."""
    for w in gl.static_range(GROUPS):
        slot = w * WHOLE + n % WHOLE
        mbarrier.wait(whole_empty.index(slot), ((n // WHOLE) & 1) ^ 1)
        mbarrier.expect(whole_full.index(slot), TILE * C * 2)
        tma.async_copy_global_to_shared(
            desc, [start + w * TILE, 0], whole_full.index(slot), whole_smem.index(slot)
        )


@gluon.jit
def load_tiles(args, HAS_THROUGH: gl.constexpr, C: gl.constexpr):
    """The loader warp."""
    (
        weights, gradients, operands, d_gate_desc, z_desc, through_desc,
        weight_smem, block_smem, whole_smem, weight_full, weight_empty,
        block_full, block_empty, whole_full, whole_empty, P,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    WHOLES: gl.constexpr = 2 if HAS_THROUGH else 1
    for i in range(gl.cdiv(gl.cdiv(P, TILE * GROUPS), gl.num_programs(0))):
        start = (i * gl.num_programs(0) + gl.program_id(0)) * TILE * GROUPS
        if start < P:
            load_whole(WHOLES * i, z_desc, start, C, whole_smem, whole_full, whole_empty)
            for side in gl.static_range(2):
                for half in gl.static_range(HALVES):
                    n = (5 * i + 2 * side) * HALVES + 2 * half
                    load_block(
                        n, weights[2 * side + 1], gradients[side], half, start, True, C,
                        weight_smem, block_smem, weight_full, weight_empty, block_full, block_empty,
                    )  # fmt: skip
                    load_block(
                        n + 1, weights[2 * side], operands[side], half, start, True, C,
                        weight_smem, block_smem, weight_full, weight_empty, block_full, block_empty,
                    )  # fmt: skip
            if HAS_THROUGH:
                load_whole(
                    WHOLES * i + 1, through_desc, start, C, whole_smem, whole_full, whole_empty
                )
            for half in gl.static_range(HALVES):
                load_block(
                    (5 * i + 4) * HALVES + half, weights[4], d_gate_desc, half, start, False, C,
                    weight_smem, block_smem, weight_full, weight_empty, block_full, block_empty,
                )  # fmt: skip


@gluon.jit
def differentiate(w, args, HAS_THROUGH: gl.constexpr, C: gl.constexpr):
    """Warp group ``w``."""
    (
        d_z_desc, d_values_desc, standard_desc, mask, mean, reciprocal, norm_weight, norm_bias,
        a_gate_bias, b_gate_bias, weight_smem, block_smem, whole_smem, weight_full, weight_empty,
        block_full, block_empty, whole_full, whole_empty, P,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    WHOLES: gl.constexpr = 2 if HAS_THROUGH else 1
    S: gl.constexpr = mma_layout(C)
    H: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, H, 2)
    A_C: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    dtype: gl.constexpr = d_z_desc.dtype
    for i in range(gl.cdiv(gl.cdiv(P, TILE * GROUPS), gl.num_programs(0))):
        start = (i * gl.num_programs(0) + gl.program_id(0)) * TILE * GROUPS
        if start < P:
            first = start + w * TILE
            mean_P = by_position(mean, first, P, S)
            reciprocal_P = by_position(reciprocal, first, P, S)
            mask_P = by_position(mask, first, P, H)
            whole = w * WHOLE + WHOLES * i % WHOLE
            z = whole_smem.index(whole)
            mbarrier.wait(whole_full.index(whole), (WHOLES * i // WHOLE) & 1)
            standard = (widen(z.load(S)) - mean_P[:, None]) * reciprocal_P[:, None]
            z.store(standard.to(dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(standard_desc, [first, 0], z)
            normed = standard * columns(norm_weight, S) + columns(norm_bias, S)
            normed = gl.convert_layout(normed.to(dtype), A)
            d_normed = gl.full([TILE, C], 0.0, gl.float32, S)
            for step in range(2 * HALVES):
                n = i * 5 * HALVES + 2 * step
                slot = n % SLOTS
                next_slot = (n + 1) % SLOTS
                phase = (n // SLOTS) & 1
                next_phase = ((n + 1) // SLOTS) & 1
                side = step // HALVES
                channel = step % HALVES * 64
                mbarrier.wait(weight_full.index(slot), phase)
                gate_weight = weight_smem.index(slot)
                opened = gl.full([TILE, 64], 0.0, gl.float32, H)
                opened = warpgroup_mma(
                    normed, gate_weight.permute((1, 0)), opened, use_acc=False, is_async=True
                )
                mbarrier.wait(block_full.index(w * SLOTS + slot), phase)
                gradient_smem = block_smem.index(w * SLOTS + slot)
                gradient = widen(gradient_smem.permute((1, 0)).load(H))
                mbarrier.wait(block_full.index(w * SLOTS + next_slot), next_phase)
                value_smem = block_smem.index(w * SLOTS + next_slot)
                value = widen(value_smem.permute((1, 0)).load(H))
                bias = gl.where(side == 0, a_gate_bias, b_gate_bias) + channel
                opened = warpgroup_mma_wait(0, [opened])
                opened = open_gate(opened, columns(bias, H) * -LOG2E, 1.0)
                d_value = (gradient * opened * mask_P[:, None]).to(dtype)
                d_logit = (gradient * value * (1.0 - opened)).to(dtype)
                gradient_smem.permute((1, 0)).store(d_value)
                value_smem.permute((1, 0)).store(d_logit)
                fence_async_shared()
                row = 2 * side * C + channel
                tma.async_copy_shared_to_global(d_values_desc, [row, first], gradient_smem)
                tma.async_copy_shared_to_global(d_values_desc, [row + C, first], value_smem)
                mbarrier.wait(weight_full.index(next_slot), next_phase)
                d_value = gl.convert_layout(d_value, A_C)
                d_logit = gl.convert_layout(d_logit, A_C)
                weight = weight_smem.index(next_slot)
                d_normed = warpgroup_mma(d_value, weight, d_normed, is_async=True)
                d_normed = warpgroup_mma(d_logit, gate_weight, d_normed, is_async=True)
                d_normed = warpgroup_mma_wait(0, [d_normed])
                mbarrier.arrive(weight_empty.index(slot))
                mbarrier.arrive(weight_empty.index(next_slot))
                tma.store_wait(0)
                mbarrier.arrive(block_empty.index(w * SLOTS + slot))
                mbarrier.arrive(block_empty.index(w * SLOTS + next_slot))
            last = i * 5 * HALVES + 4 * HALVES
            for half in gl.static_range(HALVES):
                n = last + half
                slot = n % SLOTS
                mbarrier.wait(weight_full.index(slot), (n // SLOTS) & 1)
                mbarrier.wait(block_full.index(w * SLOTS + slot), (n // SLOTS) & 1)
                d_normed = warpgroup_mma(
                    block_smem.index(w * SLOTS + slot), weight_smem.index(slot), d_normed,
                    is_async=True,
                )  # fmt: skip
            d_normed = warpgroup_mma_wait(0, [d_normed])
            for half in gl.static_range(HALVES):
                slot = (last + half) % SLOTS
                mbarrier.arrive(weight_empty.index(slot))
                mbarrier.arrive(block_empty.index(w * SLOTS + slot))
            gradient = d_normed * columns(norm_weight, S)
            standard = widen(z.load(S))
            along = row_sum(gradient * standard) * (1.0 / C)
            average = row_sum(gradient) * (1.0 / C)
            gradient = gradient - average[:, None] - standard * along[:, None]
            gradient *= reciprocal_P[:, None]
            other = w * WHOLE + (2 * i + 1) % WHOLE
            if HAS_THROUGH:
                mbarrier.wait(whole_full.index(other), ((2 * i + 1) // WHOLE) & 1)
                gradient += widen(whole_smem.index(other).load(S))
                mbarrier.arrive(whole_empty.index(other))
            z.store(gradient.to(dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(d_z_desc, [first, 0], z)
            tma.store_wait(0)
            mbarrier.arrive(whole_empty.index(whole))


@gluon.jit
def projection_backward_kernel(
    a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    d_a_desc, d_b_desc, a_desc, b_desc, d_gate_desc, z_desc, through_desc,
    d_z_desc, d_values_desc, standard_desc,
    mask, mean, reciprocal, norm_weight, norm_bias, a_gate_bias, b_gate_bias, P,
    HAS_THROUGH: gl.constexpr, C: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `..kernel.projection_backward`: d_z (P, C), d_values (4 C, P), standard (P, C)."""
    dtype: gl.constexpr = z_desc.dtype
    blocks: gl.constexpr = GROUPS * SLOTS
    wholes: gl.constexpr = GROUPS * WHOLE
    weight_smem = gl.allocate_shared_memory(dtype, [SLOTS, 64, C], a_weight_desc.layout)
    block_smem = gl.allocate_shared_memory(dtype, [blocks, 64, TILE], a_desc.layout)
    whole_smem = gl.allocate_shared_memory(dtype, [wholes, TILE, C], z_desc.layout)
    weight_full, weight_empty = barriers(SLOTS, 1), barriers(SLOTS, GROUPS)
    block_full, block_empty = barriers(blocks, 1), barriers(blocks, 1)
    whole_full, whole_empty = barriers(wholes, 1), barriers(wholes, 1)
    fence_async_shared()
    weights = (
        a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    )  # fmt: skip
    P = gl.to_tensor(P)
    load_args = (
        weights, (d_a_desc, d_b_desc), (a_desc, b_desc), d_gate_desc, z_desc, through_desc,
        weight_smem, block_smem, whole_smem, weight_full, weight_empty,
        block_full, block_empty, whole_full, whole_empty, P,
    )  # fmt: skip
    args = (
        d_z_desc, d_values_desc, standard_desc, mask, mean, reciprocal, norm_weight, norm_bias,
        a_gate_bias, b_gate_bias, weight_smem, block_smem, whole_smem, weight_full, weight_empty,
        block_full, block_empty, whole_full, whole_empty, P,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (differentiate, (gl.to_tensor(0), args, HAS_THROUGH, C)),
            (differentiate, (gl.to_tensor(1), args, HAS_THROUGH, C)),
            (load_tiles, (load_args, HAS_THROUGH, C)),
        ],
        [4, 1],
        [REGISTERS, LOADER_REGISTERS],
    )
