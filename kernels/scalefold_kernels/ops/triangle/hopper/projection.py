"""Projection of triangle multiplication on Hopper GPUs; see `parts`, and `..triton` for names.

All five weights stay in shared memory. The loader brings a tile at a time for each of two warp
groups, which normalise it in registers and give its slot back. They multiply it with 64 rows of a
value's weight and of its gate's at a time; while they open the gate, the next two products are
under way. Results leave through two places of a warp group, by turns.
"""

from collections import namedtuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait
from scalefold_kernels.gluon import ROWS, mma_layout, two_groups, widen, zeros
from scalefold_kernels.ops.triangle.arguments import Projected, ProjectionWeights, Sizes
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.parts import GROUPS

Cta = namedtuple(
    "Cta",
    "operand_descs gate_desc mask_ptr norm_weight_ptr norm_bias_ptr bias_ptrs mean_ptr rstd_ptr "
    "weight_descs weight weight_full z out num_positions C",
)


@gluon.jit
def load(cta):
    """The loader warp; a weight is several blocks of 64 rows."""
    HALVES: gl.constexpr = cta.C // 64
    mbarrier.expect(cta.weight_full, 5 * HALVES * smem.tile_bytes(cta.weight_descs[0]))
    for i in gl.static_range(5):
        for half in gl.static_range(HALVES):
            memory = cta.weight.index(i * HALVES + half)
            async_load(cta.weight_descs[i], [half * 64, 0], cta.weight_full, memory)
    for i in range(parts.num_rounds(cta.num_positions)):
        for w in gl.static_range(GROUPS):
            first = parts.first_position(i, w)
            if first < cta.num_positions:
                ring.load(cta.z, i, [first, 0], w)


@gluon.jit
def multiply(normed, weight_smem, slot):
    """Start a product with 64 rows of a weight."""
    zero = zeros(ROWS, 64)
    weight = weight_smem.index(slot).permute((1, 0))
    return mma(normed, weight, zero, use_acc=False, is_async=True)


@gluon.jit
def compute(w, cta):
    """Warp group ``w``: 64 channels at a time; products of the next are under way meanwhile."""
    HALVES: gl.constexpr = cta.C // 64
    WHOLE: gl.constexpr = mma_layout(cta.C)
    HALF: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, HALF, 2)
    dtype: gl.constexpr = cta.gate_desc.dtype
    mbarrier.wait(cta.weight_full, 0)
    for i in range(parts.num_rounds(cta.num_positions)):
        first = parts.first_position(i, w)
        if first < cta.num_positions:
            mask = parts.load_column(cta.mask_ptr, first, cta.num_positions, HALF)
            inverse_mask = parts.invert_mask(mask)
            slot = ring.wait_full(cta.z, i, w)
            x = widen(cta.z.slots.index(slot).load(WHOLE))
            mbarrier.arrive(cta.z.empty.index(slot))
            normed = gl.convert_layout(parts.normalised(x, first, cta).to(dtype), A)
            weight = parts.opaque(0)
            opened = multiply(normed, cta.weight, weight + HALVES)
            value = multiply(normed, cta.weight, weight)
            for side in gl.static_range(2):
                for half in gl.static_range(HALVES):
                    weight = parts.opaque(0) + 2 * side * HALVES + half + 1
                    if half + 1 < HALVES:
                        next_opened = multiply(normed, cta.weight, weight + HALVES)
                        next_value = multiply(normed, cta.weight, weight)
                    elif side == 0:
                        next_opened = multiply(normed, cta.weight, weight + 2 * HALVES)
                        next_value = multiply(normed, cta.weight, weight + HALVES)
                    else:
                        # The first and the last 64 channels of the gate.
                        next_opened = multiply(normed, cta.weight, weight + HALVES)
                        next_value = multiply(normed, cta.weight, weight + 2 * HALVES - 1)
                    opened, value = mma_wait(2, [opened, value])
                    bias = parts.load_row(cta.bias_ptrs[2 * side + 1] + half * 64, HALF)
                    opened = parts.open_gate(opened, bias * -parts.LOG2E, inverse_mask[:, None])
                    value += parts.load_row(cta.bias_ptrs[2 * side] + half * 64, HALF)
                    value *= opened
                    out = cta.out.index(2 * w + (side * HALVES + half) % 2)
                    # The result before the last has left this place.
                    tma.store_wait(1)
                    out.permute((1, 0)).store(value.to(dtype))
                    fence_async_shared()
                    async_store(cta.operand_descs[side], [half * 64, first], out)
                    opened, value = next_opened, next_value
            opened, value = mma_wait(0, [opened, value])
            for half in gl.static_range(HALVES):
                logit = opened if half == 0 else value
                logit += parts.load_row(cta.bias_ptrs[4] + half * 64, HALF)
                out = cta.out.index(w * 2 + half)
                tma.store_wait(1)
                out.store(logit.to(dtype))
                fence_async_shared()
                async_store(cta.gate_desc, [first, half * 64], out)
            if HALVES == 1:  # an odd number of results for two places
                tma.store_wait(0)
    tma.store_wait(0)


@gluon.jit
def triangle_projection_forward_hopper_kernel(
    z_desc, a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    a_desc, b_desc, gate_desc, mask_ptr, norm_weight_ptr, norm_bias_ptr, a_bias_ptr,
    a_gate_bias_ptr, b_bias_ptr, b_gate_bias_ptr, gate_bias_ptr, mean_ptr, rstd_ptr, num_positions,
    C: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Masked operands (C, P), gate (P, C), statistics (P,)."""
    gl.static_assert(a_weight_desc.block_shape[0] == 64)
    gl.static_assert(a_desc.block_shape[0] == 64)
    weight_descs = (
        a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    )  # fmt: skip
    two_groups(Cta(
        (a_desc, b_desc), gate_desc, mask_ptr, norm_weight_ptr, norm_bias_ptr,
        (a_bias_ptr, a_gate_bias_ptr, b_bias_ptr, b_gate_bias_ptr, gate_bias_ptr), mean_ptr,
        rstd_ptr, weight_descs, smem.tiles(a_weight_desc, 5 * C // 64), smem.barrier(),
        ring.new(z_desc, GROUPS, 1), smem.tiles(gate_desc, 2 * GROUPS), gl.to_tensor(num_positions),
        C,
    ), compute, load, GROUP_REGISTERS, gl.to_tensor(0), gl.to_tensor(1))  # fmt: skip


def projection_forward(
    sizes: Sizes, z: Tensor, mask: Tensor, weights: ProjectionWeights
) -> Projected:
    found = Projected.empty(z, sizes.hidden)
    triangle_projection_forward_hopper_kernel[(parts.num_ctas(sizes, z),)](
        parts.row_tiles(z), *(parts.weight_tiles(w) for w in weights.matrices),
        *(parts.column_tiles(x, 64) for x in (found.a, found.b)), parts.row_tiles(found.gate, 64),
        mask, weights.norm_weight, weights.norm_bias, weights.a_bias, weights.a_gate_bias,
        weights.b_bias, weights.b_gate_bias, weights.gate_bias, found.mean, found.rstd,
        sizes.positions, C=sizes.pair, GROUP_REGISTERS=parts.GROUP_REGISTERS,
    )  # fmt: skip
    return found
