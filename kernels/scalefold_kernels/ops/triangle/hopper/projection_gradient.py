"""Gradient of the projection's input on Hopper GPUs; see `parts`, and `..triton` for names.

Two CTAs share an SM and its instructions, and wait for nothing of each other. The loader fills
three rings, in the order of their use: z; 64 rows of a weight, again for every tile, as all weights
would leave no room; and tiles with 64 channels of operands and gradients. For each 64 channels of
an operand the warp group makes the gradients of value and logit, which TMA stores from where the
operand and its gradient were, and multiplies them with their weights. LayerNorm's backward follows.
"""

from collections import namedtuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring
from scalefold_kernels.compiler import async_store, mma, mma_wait, reinterpret
from scalefold_kernels.gluon import ROWS, mma_layout, one_group, widen, zeros
from scalefold_kernels.ops.triangle.arguments import (
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
    Sizes,
)
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.parts import LOADER_REGISTERS, LOG2E
from scalefold_kernels.ops.triangle.weights import projection_gradients

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


Cta = namedtuple(
    "Cta",
    "weight_descs grad_descs operand_descs grad_gate_desc through_desc grad_z_desc "
    "grad_values_desc x_hat_desc mask_ptr mean_ptr rstd_ptr norm_weight_ptr norm_bias_ptr "
    "a_gate_bias_ptr b_gate_bias_ptr weights blocks wholes num_positions num_tiles HAS_THROUGH C",
)


@gluon.jit
def load_block(cta, n, desc, start):
    """Number ``n`` of the ring of blocks."""
    ring.load(ring.beside(cta.blocks, desc), n, start)


@gluon.jit
def load_weight(cta, n, number: gl.constexpr, row):
    """Number ``n`` of the ring of weights."""
    ring.load(ring.beside(cta.weights, cta.weight_descs[number]), n, [row, 0])


@gluon.jit
def load(cta):
    HALVES: gl.constexpr = cta.C // 64
    i = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        first = tile * ROWS
        block = i * per_tile(cta.HAS_THROUGH, cta.C)
        weight = i * 5 * HALVES
        ring.load(cta.wholes, i, [first, 0])
        for side in gl.static_range(2):
            for half in gl.static_range(HALVES):
                row = half * 64
                load_block(cta, block, cta.grad_descs[side], [row, first])
                load_weight(cta, weight, 2 * side + 1, row)
                load_block(cta, block + 1, cta.operand_descs[side], [row, first])
                load_weight(cta, weight + 1, 2 * side, row)
                block += 2
                weight += 2
        for half in gl.static_range(HALVES):
            load_block(cta, block + half, cta.grad_gate_desc, [first, half * 64])
            load_weight(cta, weight + half, 4, half * 64)
        if cta.HAS_THROUGH:
            block += HALVES
            for half in gl.static_range(HALVES):
                load_block(cta, block + half, cta.through_desc, [first, half * 64])
        i += 1


@gluon.jit
def differentiate_operand(grad_normed, normed, mask, first, step, n, m, cta):
    """Gradient of the normalised rows with that through 64 channels of an operand.

    ``n`` and ``m``: numbers of the operand's gradient in the ring of blocks, and of its gate's
    weight in that of weights; the operand and its weight come after them. Gradients of value and
    logit leave from the slots of the operand and its gradient.
    """
    HALVES: gl.constexpr = cta.C // 64
    HALF: gl.constexpr = mma_layout(64)
    A_C: gl.constexpr = gl.DotOperandLayout(0, mma_layout(cta.C), 2)
    dtype: gl.constexpr = cta.grad_z_desc.dtype
    side = step // HALVES
    channel = step % HALVES * 64
    gate_slot = ring.wait_full(cta.weights, m)
    gate_weight = cta.weights.slots.index(gate_slot)
    opened = mma(normed, gate_weight.permute((1, 0)), zeros(ROWS, 64), use_acc=False, is_async=True)
    grad_slot = ring.wait_full(cta.blocks, n)
    grad_smem = cta.blocks.slots.index(grad_slot)
    grad = widen(grad_smem.permute((1, 0)).load(HALF))
    value_slot = ring.wait_full(cta.blocks, n + 1)
    value_smem = cta.blocks.slots.index(value_slot)
    value = widen(value_smem.permute((1, 0)).load(HALF))
    bias = gl.where(side == 0, cta.a_gate_bias_ptr, cta.b_gate_bias_ptr) + channel
    bias = parts.load_row(bias, HALF) * -LOG2E
    opened = mma_wait(0, [opened])
    opened = parts.open_gate(opened, bias, 1.0)
    grad_value = (grad * opened * mask[:, None]).to(dtype)
    grad_logit = (grad * value * (1.0 - opened)).to(dtype)
    grad_smem.permute((1, 0)).store(grad_value)
    value_smem.permute((1, 0)).store(grad_logit)
    fence_async_shared()
    row = 2 * side * cta.C + channel
    async_store(cta.grad_values_desc, [row, first], grad_smem)
    async_store(cta.grad_values_desc, [row + cta.C, first], value_smem)
    slot = ring.wait_full(cta.weights, m + 1)
    grad_value = gl.convert_layout(grad_value, A_C)
    grad_logit = gl.convert_layout(grad_logit, A_C)
    grad_normed = mma(grad_value, cta.weights.slots.index(slot), grad_normed, is_async=True)
    grad_normed = mma(grad_logit, gate_weight, grad_normed, is_async=True)
    grad_normed = mma_wait(0, [grad_normed])
    mbarrier.arrive(cta.weights.empty.index(gate_slot))
    mbarrier.arrive(cta.weights.empty.index(slot))
    # Their slots are not free before the copies have left them.
    tma.store_wait(0)
    mbarrier.arrive(cta.blocks.empty.index(grad_slot))
    mbarrier.arrive(cta.blocks.empty.index(value_slot))
    return grad_normed


@gluon.jit
def compute(cta):
    C: gl.constexpr = cta.C
    HALVES: gl.constexpr = C // 64
    WHOLE: gl.constexpr = mma_layout(C)
    HALF: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, HALF, 2)
    dtype: gl.constexpr = cta.grad_z_desc.dtype
    i = gl.to_tensor(0)
    start = gl.program_id(0) * ROWS
    next_mean = parts.load_column(cta.mean_ptr, start, cta.num_positions, WHOLE)
    next_rstd = parts.load_column(cta.rstd_ptr, start, cta.num_positions, WHOLE)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        first = tile * ROWS
        mean, rstd = next_mean, next_rstd
        mask = parts.load_column(cta.mask_ptr, first, cta.num_positions, HALF)
        norm_weight = parts.load_raw_row(cta.norm_weight_ptr, WHOLE)
        norm_bias = parts.load_raw_row(cta.norm_bias_ptr, WHOLE)
        whole = ring.wait_full(cta.wholes, i)
        z = cta.wholes.slots.index(whole)
        x_hat = (widen(z.load(WHOLE)) - mean[:, None]) * rstd[:, None]
        z.store(x_hat.to(dtype))
        fence_async_shared()
        async_store(cta.x_hat_desc, [first, 0], z)
        normed = x_hat * norm_weight.to(gl.float32) + norm_bias.to(gl.float32)
        normed = gl.convert_layout(normed.to(dtype), A)
        grad_normed = zeros(ROWS, C)
        for step in range(2 * HALVES):
            n = i * per_tile(cta.HAS_THROUGH, C) + 2 * step
            m = i * 5 * HALVES + 2 * step
            grad_normed = differentiate_operand(grad_normed, normed, mask, first, step, n, m, cta)
        n = i * per_tile(cta.HAS_THROUGH, C) + 4 * HALVES
        m = (5 * i + 4) * HALVES
        for half in gl.static_range(HALVES):
            weight = cta.weights.slots.index(ring.wait_full(cta.weights, m + half))
            grad_gate = cta.blocks.slots.index(ring.wait_full(cta.blocks, n + half))
            grad_normed = mma(grad_gate, weight, grad_normed, is_async=True)
        # What comes from memory, now, while the products are under way.
        norm_weight = parts.load_raw_row(cta.norm_weight_ptr, WHOLE)
        following = first + gl.num_programs(0) * ROWS
        next_mean = parts.load_column(cta.mean_ptr, following, cta.num_positions, WHOLE)
        next_rstd = parts.load_column(cta.rstd_ptr, following, cta.num_positions, WHOLE)
        grad_normed = mma_wait(0, [grad_normed])
        for half in gl.static_range(HALVES):
            mbarrier.arrive(cta.weights.empty.index(ring.slot(cta.weights, m + half)))
            mbarrier.arrive(cta.blocks.empty.index(ring.slot(cta.blocks, n + half)))
        grad_hat = grad_normed * norm_weight.to(gl.float32)
        x_hat = widen(z.load(WHOLE))
        mean_product = parts.row_sum(grad_hat * x_hat) * (1.0 / C)
        mean_grad = parts.row_sum(grad_hat) * (1.0 / C)
        grad_x = grad_hat - mean_grad[:, None] - x_hat * mean_product[:, None]
        grad_x *= rstd[:, None]
        if cta.HAS_THROUGH:
            # The last slots of a round, so that they are adjacent.
            n += HALVES
            for half in gl.static_range(HALVES):
                ring.wait_full(cta.blocks, n + half)
            shape: gl.constexpr = [BLOCKS // HALVES, ROWS, C]
            wholes_smem = reinterpret(cta.blocks.slots, dtype, shape, z.layout)
            grad_x += widen(wholes_smem.index(n % BLOCKS // HALVES).load(WHOLE))
            for half in gl.static_range(HALVES):
                mbarrier.arrive(cta.blocks.empty.index(ring.slot(cta.blocks, n + half)))
        z.store(grad_x.to(dtype))
        fence_async_shared()
        async_store(cta.grad_z_desc, [first, 0], z)
        tma.store_wait(0)
        mbarrier.arrive(cta.wholes.empty.index(whole))
        i += 1


@gluon.jit(do_not_specialize=["num_tiles"])
def triangle_projection_backward_hopper_kernel(
    a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    grad_a_desc, grad_b_desc, a_desc, b_desc, grad_gate_desc, z_desc, through_desc, grad_z_desc,
    grad_values_desc, x_hat_desc, mask_ptr, mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr,
    a_gate_bias_ptr, b_gate_bias_ptr, num_positions, num_tiles, HAS_THROUGH: gl.constexpr,
    C: gl.constexpr,
):  # fmt: skip
    """Same results as the Triton kernel: grad_z (P, C), grad_values (4 C, P), x_hat (P, C)."""
    weight_descs = (
        a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    )  # fmt: skip
    one_group(Cta(
        weight_descs, (grad_a_desc, grad_b_desc), (a_desc, b_desc), grad_gate_desc, through_desc,
        grad_z_desc, grad_values_desc, x_hat_desc, mask_ptr, mean_ptr, rstd_ptr, norm_weight_ptr,
        norm_bias_ptr, a_gate_bias_ptr, b_gate_bias_ptr, ring.new(a_weight_desc, WEIGHTS, 1),
        ring.new(a_desc, BLOCKS, 1), ring.new(z_desc, WHOLES, 1), gl.to_tensor(num_positions),
        gl.to_tensor(num_tiles), HAS_THROUGH, C,
    ), compute, load, LOADER_REGISTERS)  # fmt: skip


def projection_backward(
    sizes: Sizes, gradients: ProjectionGradients, kept: ProjectionKept, weights: ProjectionWeights
) -> tuple[Tensor, Tensor]:
    grad_a, grad_b, grad_gate, through = gradients
    z, mask, a, b, *stats = kept
    grad_z, x_hat = torch.empty_like(z), torch.empty_like(z)
    grad_values = z.new_empty(4 * sizes.hidden, sizes.positions)
    ctas, num_tiles, registers = parts.sharing(sizes, z, 2)
    triangle_projection_backward_hopper_kernel[(ctas,)](
        *(parts.weight_tiles(w) for w in weights.matrices),
        *(parts.column_tiles(x, 64) for x in (grad_a, grad_b, a, b)),
        parts.row_tiles(grad_gate, 64), parts.row_tiles(z),
        parts.row_tiles(z if through is None else through, 64), parts.row_tiles(grad_z),
        parts.column_tiles(grad_values, 64), parts.row_tiles(x_hat), mask, *stats,
        weights.norm_weight, weights.norm_bias, weights.a_gate_bias, weights.b_gate_bias,
        sizes.positions, num_tiles,
        HAS_THROUGH=through is not None, C=sizes.pair, maxnreg=registers,
    )  # fmt: skip
    return grad_z, projection_gradients(sizes, grad_values, grad_gate, x_hat, weights)
