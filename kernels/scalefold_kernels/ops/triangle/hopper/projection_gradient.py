"""Gradient of the projection's input on Hopper GPUs; see `parts`, and `..triton` for names.

Two CTAs share an SM and its instructions, and wait for nothing of each other. The weights are
loaded again for every tile, as all of them would leave no room: 64 channels of an operand at a
time, in a ring of slots beside a ring of tiles with 64 channels. Gradients of value and logit take
the places of what they are made of.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait, reinterpret
from scalefold_kernels.gluon import mma_layout, new_barriers, wait_empty, wait_full, widen
from scalefold_kernels.ops.triangle.arguments import (
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
    Sizes,
)
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.parts import LOADER_REGISTERS, LOG2E, TILE
from scalefold_kernels.ops.triangle.triton.weights import projection_gradients

WEIGHTS = gl.constexpr(3)
"""Slots of the ring of 64 rows of a weight each."""

BLOCKS = gl.constexpr(4)
"""Slots of the ring of tiles with 64 channels: operands, gradients, and z's gradient elsewhere."""

WHOLES = gl.constexpr(2)
"""Slots of the ring of tiles with all channels: z."""


@gluon.constexpr_function
def per_tile(HAS_THROUGH, C):
    """How many tiles of 64 channels the ring of blocks carries for one of all channels."""
    return (6 if HAS_THROUGH else 5) * C // 64


@gluon.jit
def load_block(n, desc, channel, first, TRANSPOSED: gl.constexpr, block_smem, blocks):
    """Number ``n`` of the ring of blocks."""
    slot, bar = wait_empty(blocks[0], blocks[1], n, 64 * TILE * 2)
    if TRANSPOSED:
        async_load(desc, [channel, first], bar, block_smem.index(slot))
    else:
        async_load(desc, [first, channel], bar, block_smem.index(slot))


@gluon.jit
def load_weight(n, desc, row, C: gl.constexpr, weight_smem, weights):
    """Number ``n`` of the ring of weights."""
    slot, bar = wait_empty(weights[0], weights[1], n, 64 * C * 2)
    async_load(desc, [row, 0], bar, weight_smem.index(slot))


@gluon.jit
def load_tiles(args, HAS_THROUGH: gl.constexpr, C: gl.constexpr):
    """The loader warp."""
    (
        weight_descs, gradients, operands, d_gate_desc, z_desc, through_desc,
        weight_smem, block_smem, z_smem, weights, blocks, wholes, num_tiles,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    i = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        first = tile * TILE
        block = i * per_tile(HAS_THROUGH, C)
        weight = i * 5 * HALVES
        slot, bar = wait_empty(wholes[0], wholes[1], i, TILE * C * 2)
        async_load(z_desc, [first, 0], bar, z_smem.index(slot))
        for side in gl.static_range(2):
            for half in gl.static_range(HALVES):
                row = half * 64
                load_block(block, gradients[side], row, first, True, block_smem, blocks)
                load_weight(weight, weight_descs[2 * side + 1], row, C, weight_smem, weights)
                load_block(block + 1, operands[side], row, first, True, block_smem, blocks)
                load_weight(weight + 1, weight_descs[2 * side], row, C, weight_smem, weights)
                block += 2
                weight += 2
        for half in gl.static_range(HALVES):
            load_block(block + half, d_gate_desc, half * 64, first, False, block_smem, blocks)
            load_weight(weight + half, weight_descs[4], half * 64, C, weight_smem, weights)
        if HAS_THROUGH:
            block += HALVES
            for half in gl.static_range(HALVES):
                load_block(block + half, through_desc, half * 64, first, False, block_smem, blocks)
        i += 1


@gluon.jit
def differentiate_operand(
    d_normed, normed, mask_P, first, step, n, m, args, C: gl.constexpr
):  # fmt: skip
    """Gradient of the normalised rows with that through 64 channels of an operand.

    ``n`` and ``m``: numbers of the operand's gradient in the ring of blocks, and of its gate's
    weight in that of weights; the operand and its weight come after them. Gradients of value and
    logit leave from the places of the operand and its gradient.
    """
    d_values_desc, a_gate_bias, b_gate_bias, weight_smem, block_smem, weights, blocks = args
    HALVES: gl.constexpr = C // 64
    H: gl.constexpr = mma_layout(64)
    A_C: gl.constexpr = gl.DotOperandLayout(0, mma_layout(C), 2)
    dtype: gl.constexpr = weight_smem.dtype
    weight_empty, block_empty = weights[1], blocks[1]
    side = step // HALVES
    channel = step % HALVES * 64
    gate_slot = wait_full(weights[0], m)
    gate_weight = weight_smem.index(gate_slot)
    opened = gl.full([TILE, 64], 0.0, gl.float32, H)
    opened = mma(normed, gate_weight.permute((1, 0)), opened, use_acc=False, is_async=True)
    gradient_slot = wait_full(blocks[0], n)
    gradient_smem = block_smem.index(gradient_slot)
    gradient = widen(gradient_smem.permute((1, 0)).load(H))
    value_slot = wait_full(blocks[0], n + 1)
    value_smem = block_smem.index(value_slot)
    value = widen(value_smem.permute((1, 0)).load(H))
    bias = gl.where(side == 0, a_gate_bias, b_gate_bias) + channel
    bias = parts.columns(bias, H) * -LOG2E
    opened = mma_wait(0, [opened])
    opened = parts.open_gate(opened, bias, 1.0)
    d_value = (gradient * opened * mask_P[:, None]).to(dtype)
    d_logit = (gradient * value * (1.0 - opened)).to(dtype)
    gradient_smem.permute((1, 0)).store(d_value)
    value_smem.permute((1, 0)).store(d_logit)
    fence_async_shared()
    row = 2 * side * C + channel
    async_store(d_values_desc, [row, first], gradient_smem)
    async_store(d_values_desc, [row + C, first], value_smem)
    slot = wait_full(weights[0], m + 1)
    d_value = gl.convert_layout(d_value, A_C)
    d_logit = gl.convert_layout(d_logit, A_C)
    d_normed = mma(d_value, weight_smem.index(slot), d_normed, is_async=True)
    d_normed = mma(d_logit, gate_weight, d_normed, is_async=True)
    d_normed = mma_wait(0, [d_normed])
    mbarrier.arrive(weight_empty.index(gate_slot))
    mbarrier.arrive(weight_empty.index(slot))
    # Their places are not free before the copies have left them.
    tma.store_wait(0)
    mbarrier.arrive(block_empty.index(gradient_slot))
    mbarrier.arrive(block_empty.index(value_slot))
    return d_normed


@gluon.jit
def differentiate(args, HAS_THROUGH: gl.constexpr, C: gl.constexpr):
    """The warp group that computes."""
    (
        d_z_desc, d_values_desc, standard_desc, mask, mean, reciprocal, norm_weight, norm_bias,
        a_gate_bias, b_gate_bias, weight_smem, block_smem, z_smem, weights, blocks, wholes,
        P, num_tiles,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    S: gl.constexpr = mma_layout(C)
    H: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, H, 2)
    dtype: gl.constexpr = d_z_desc.dtype
    weight_empty, block_empty, whole_empty = weights[1], blocks[1], wholes[1]
    operand_args = (
        d_values_desc, a_gate_bias, b_gate_bias, weight_smem, block_smem, weights, blocks,
    )  # fmt: skip
    i = gl.to_tensor(0)
    start = gl.program_id(0) * TILE
    next_mean = parts.by_position(mean, start, P, S)
    next_reciprocal = parts.by_position(reciprocal, start, P, S)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        first = tile * TILE
        mean_P, reciprocal_P = next_mean, next_reciprocal
        mask_P = parts.by_position(mask, first, P, H)
        scale, shift = parts.raw_columns(norm_weight, S), parts.raw_columns(norm_bias, S)
        whole = wait_full(wholes[0], i)
        z = z_smem.index(whole)
        standard = (widen(z.load(S)) - mean_P[:, None]) * reciprocal_P[:, None]
        z.store(standard.to(dtype))
        fence_async_shared()
        async_store(standard_desc, [first, 0], z)
        normed = standard * scale.to(gl.float32) + shift.to(gl.float32)
        normed = gl.convert_layout(normed.to(dtype), A)
        d_normed = gl.full([TILE, C], 0.0, gl.float32, S)
        for step in range(2 * HALVES):
            n = i * per_tile(HAS_THROUGH, C) + 2 * step
            m = i * 5 * HALVES + 2 * step
            d_normed = differentiate_operand(
                d_normed, normed, mask_P, first, step, n, m, operand_args, C
            )
        n = i * per_tile(HAS_THROUGH, C) + 4 * HALVES
        m = (5 * i + 4) * HALVES
        for half in gl.static_range(HALVES):
            weight = weight_smem.index(wait_full(weights[0], m + half))
            d_gate = block_smem.index(wait_full(blocks[0], n + half))
            d_normed = mma(d_gate, weight, d_normed, is_async=True)
        # What comes from memory, now, while the products are under way.
        scale = parts.raw_columns(norm_weight, S)
        following = first + gl.num_programs(0) * TILE
        next_mean = parts.by_position(mean, following, P, S)
        next_reciprocal = parts.by_position(reciprocal, following, P, S)
        d_normed = mma_wait(0, [d_normed])
        for half in gl.static_range(HALVES):
            mbarrier.arrive(weight_empty.index((m + half) % WEIGHTS))
            mbarrier.arrive(block_empty.index((n + half) % BLOCKS))
        gradient = d_normed * scale.to(gl.float32)
        standard = widen(z.load(S))
        along = parts.row_sum(gradient * standard) * (1.0 / C)
        average = parts.row_sum(gradient) * (1.0 / C)
        gradient = gradient - average[:, None] - standard * along[:, None]
        gradient *= reciprocal_P[:, None]
        if HAS_THROUGH:
            # The last slots of a round, so that they are adjacent.
            n += HALVES
            for half in gl.static_range(HALVES):
                wait_full(blocks[0], n + half)
            wholes_smem = reinterpret(block_smem, dtype, [BLOCKS // HALVES, TILE, C], z.layout)
            gradient += widen(wholes_smem.index(n % BLOCKS // HALVES).load(S))
            for half in gl.static_range(HALVES):
                mbarrier.arrive(block_empty.index((n + half) % BLOCKS))
        z.store(gradient.to(dtype))
        fence_async_shared()
        async_store(d_z_desc, [first, 0], z)
        tma.store_wait(0)
        mbarrier.arrive(whole_empty.index(whole))
        i += 1


@gluon.jit(do_not_specialize=["num_tiles"])
def projection_backward_kernel(
    a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    d_a_desc, d_b_desc, a_desc, b_desc, d_gate_desc, z_desc, through_desc,
    d_z_desc, d_values_desc, standard_desc,
    mask, mean, reciprocal, norm_weight, norm_bias, a_gate_bias, b_gate_bias, P, num_tiles,
    HAS_THROUGH: gl.constexpr, C: gl.constexpr,
):  # fmt: skip
    """Same results as the Triton kernel: d_z (P, C), d_values (4 C, P), standard (P, C)."""
    dtype: gl.constexpr = z_desc.dtype
    weight_smem = gl.allocate_shared_memory(dtype, [WEIGHTS, 64, C], a_weight_desc.layout)
    block_smem = gl.allocate_shared_memory(dtype, [BLOCKS, 64, TILE], a_desc.layout)
    z_smem = gl.allocate_shared_memory(dtype, [WHOLES, TILE, C], z_desc.layout)
    weights = new_barriers(WEIGHTS, 1), new_barriers(WEIGHTS, 1)
    blocks = new_barriers(BLOCKS, 1), new_barriers(BLOCKS, 1)
    wholes = new_barriers(WHOLES, 1), new_barriers(WHOLES, 1)
    fence_async_shared()
    weight_descs = (
        a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    )  # fmt: skip
    P, num_tiles = gl.to_tensor(P), gl.to_tensor(num_tiles)
    load_args = (
        weight_descs, (d_a_desc, d_b_desc), (a_desc, b_desc), d_gate_desc, z_desc, through_desc,
        weight_smem, block_smem, z_smem, weights, blocks, wholes, num_tiles,
    )  # fmt: skip
    args = (
        d_z_desc, d_values_desc, standard_desc, mask, mean, reciprocal, norm_weight, norm_bias,
        a_gate_bias, b_gate_bias, weight_smem, block_smem, z_smem, weights, blocks, wholes,
        P, num_tiles,
    )  # fmt: skip
    gl.warp_specialize(
        [(differentiate, (args, HAS_THROUGH, C)), (load_tiles, (load_args, HAS_THROUGH, C))],
        [1],
        [LOADER_REGISTERS],
    )


def projection_backward(
    sizes: Sizes, gradients: ProjectionGradients, kept: ProjectionKept, weights: ProjectionWeights
) -> tuple[Tensor, Tensor]:
    """Gradient of z; those of the parameters, one after the other in one vector."""
    d_a, d_b, d_gate, through = gradients
    z, mask, a, b, *statistics = kept
    d_z, standard = torch.empty_like(z), torch.empty_like(z)
    d_values = z.new_empty(4 * sizes.hidden, sizes.positions)
    ctas, num_tiles, registers = parts.sharing(sizes, z, 2)
    projection_backward_kernel[(ctas,)](
        *(parts.weight_tiles(w) for w in weights.matrices),
        *(parts.column_tiles(x, 64) for x in (d_a, d_b, a, b)),
        parts.row_tiles(d_gate, 64), parts.row_tiles(z),
        parts.row_tiles(z if through is None else through, 64), parts.row_tiles(d_z),
        parts.column_tiles(d_values, 64), parts.row_tiles(standard), mask, *statistics,
        weights.scale, weights.shift, weights.a_gate_bias, weights.b_gate_bias,
        sizes.positions, num_tiles,
        HAS_THROUGH=through is not None, C=sizes.pair, maxnreg=registers,
    )  # fmt: skip
    return d_z, projection_gradients(sizes, d_values, d_gate, standard, weights)
