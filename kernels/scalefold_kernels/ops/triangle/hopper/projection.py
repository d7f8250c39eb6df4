"""Projection of triangle multiplication on Hopper GPUs; see `parts`, and `..triton` for names."""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait
from scalefold_kernels.gluon import mma_layout, new_barriers, widen
from scalefold_kernels.ops.triangle.arguments import EPS, Projected, ProjectionWeights, Sizes
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.parts import GROUPS, TILE


@gluon.jit
def load_tiles(args, C: gl.constexpr):
    """The loader warp; a weight is several blocks of 64 rows."""
    weights, z_desc, weight_smem, z_smem, weight_full, full, empty, P = args
    HALVES: gl.constexpr = C // 64
    mbarrier.expect(weight_full, 5 * C * C * 2)
    for i in gl.static_range(5):
        for half in gl.static_range(HALVES):
            place = weight_smem.index(i * HALVES + half)
            async_load(weights[i], [half * 64, 0], weight_full, place)
    for i in range(parts.num_rounds(P)):
        for w in gl.static_range(GROUPS):
            first = parts.tile_of(i, w)
            if first < P:
                mbarrier.wait(empty.index(w), (i & 1) ^ 1)
                mbarrier.expect(full.index(w), TILE * C * 2)
                async_load(z_desc, [first, 0], full.index(w), z_smem.index(w))


@gluon.jit
def multiply(normed, weight_smem, place):
    """Start a product with 64 rows of a weight."""
    zero = gl.full([TILE, 64], 0.0, gl.float32, mma_layout(64))
    weight = weight_smem.index(place).permute((1, 0))
    return mma(normed, weight, zero, use_acc=False, is_async=True)


@gluon.jit
def project(w, args, C: gl.constexpr):
    """Warp group ``w``: 64 channels at a time; products of the next are under way meanwhile."""
    (
        operands, gate_desc, mask, norm_weight, norm_bias, biases, mean, reciprocal,
        weight_smem, z_smem, out_smem, weight_full, full, empty, P, eps,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    S: gl.constexpr = mma_layout(C)
    H: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, H, 2)
    dtype: gl.constexpr = gate_desc.dtype
    mbarrier.wait(weight_full, 0)
    for i in range(parts.num_rounds(P)):
        first = parts.tile_of(i, w)
        if first < P:
            inverse_mask = parts.invert_mask(parts.by_position(mask, first, P, H))
            mbarrier.wait(full.index(w), i & 1)
            x = widen(z_smem.index(w).load(S))
            mbarrier.arrive(empty.index(w))
            standard, mean_P, reciprocal_P = parts.standardise(x, eps)
            position = first + gl.arange(0, TILE, layout=gl.SliceLayout(1, S))
            gl.store(mean + position, mean_P, mask=position < P)
            gl.store(reciprocal + position, reciprocal_P, mask=position < P)
            normed = standard * parts.columns(norm_weight, S) + parts.columns(norm_bias, S)
            normed = gl.convert_layout(normed.to(dtype), A)
            weight = parts.opaque(0)
            opened = multiply(normed, weight_smem, weight + HALVES)
            value = multiply(normed, weight_smem, weight)
            for side in gl.static_range(2):
                for half in gl.static_range(HALVES):
                    weight = parts.opaque(0) + 2 * side * HALVES + half + 1
                    if half + 1 < HALVES:
                        next_opened = multiply(normed, weight_smem, weight + HALVES)
                        next_value = multiply(normed, weight_smem, weight)
                    elif side == 0:
                        next_opened = multiply(normed, weight_smem, weight + 2 * HALVES)
                        next_value = multiply(normed, weight_smem, weight + HALVES)
                    else:
                        # Of the gate: the first and the last 64 channels.
                        next_opened = multiply(normed, weight_smem, weight + HALVES)
                        next_value = multiply(normed, weight_smem, weight + 2 * HALVES - 1)
                    opened, value = mma_wait(2, [opened, value])
                    bias = parts.columns(biases[2 * side + 1] + half * 64, H) * -parts.LOG2E
                    opened = parts.open_gate(opened, bias, inverse_mask[:, None])
                    value = (value + parts.columns(biases[2 * side] + half * 64, H)) * opened
                    out = out_smem.index(2 * w + (side * HALVES + half) % 2)
                    # The result before the last has left this place.
                    tma.store_wait(1)
                    out.permute((1, 0)).store(value.to(dtype))
                    fence_async_shared()
                    async_store(operands[side], [half * 64, first], out)
                    opened, value = next_opened, next_value
            opened, value = mma_wait(0, [opened, value])
            for half in gl.static_range(HALVES):
                if half == 0:
                    logit = opened
                else:
                    logit = value
                logit += parts.columns(biases[4] + half * 64, H)
                out = out_smem.index(w * 2 + half)
                tma.store_wait(1)
                out.store(logit.to(dtype))
                fence_async_shared()
                async_store(gate_desc, [first, half * 64], out)
            if HALVES == 1:  # an odd number of results for two places
                tma.store_wait(0)
    tma.store_wait(0)


@gluon.jit
def projection_forward_kernel(
    z_desc, a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    a_desc, b_desc, gate_desc, mask, norm_weight, norm_bias,
    a_bias, a_gate_bias, b_bias, b_gate_bias, gate_bias, mean, reciprocal, P, eps,
    C: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Masked operands (C, P), gate (P, C), statistics (P,)."""
    gl.static_assert(a_weight_desc.block_shape[0] == 64)
    gl.static_assert(a_desc.block_shape[0] == 64)
    dtype: gl.constexpr = z_desc.dtype
    weight_smem = gl.allocate_shared_memory(dtype, [5 * C // 64, 64, C], a_weight_desc.layout)
    z_smem = gl.allocate_shared_memory(dtype, [GROUPS, TILE, C], z_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [2 * GROUPS, TILE, 64], gate_desc.layout)
    full, empty = new_barriers(GROUPS, 1), new_barriers(GROUPS, 1)
    weight_full = new_barriers(1, 1).index(0)
    fence_async_shared()
    weights = (
        a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    )  # fmt: skip
    P = gl.to_tensor(P)
    load_args = (weights, z_desc, weight_smem, z_smem, weight_full, full, empty, P)
    args = (
        (a_desc, b_desc), gate_desc, mask, norm_weight, norm_bias,
        (a_bias, a_gate_bias, b_bias, b_gate_bias, gate_bias), mean, reciprocal,
        weight_smem, z_smem, out_smem, weight_full, full, empty, P, eps,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (project, (gl.to_tensor(0), args, C)),
            (project, (gl.to_tensor(1), args, C)),
            (load_tiles, (load_args, C)),
        ],
        [4, 1],
        [REGISTERS, parts.LOADER_REGISTERS],
    )


def projection_forward(
    sizes: Sizes, z: Tensor, mask: Tensor, weights: ProjectionWeights
) -> Projected:
    """Operands, gate, and the statistics of each position."""
    found = Projected.empty(z, sizes.hidden)
    projection_forward_kernel[(parts.num_ctas(sizes, z),)](
        parts.row_tiles(z), *(parts.weight_tiles(w) for w in weights.matrices),
        *(parts.column_tiles(x, 64) for x in (found.a, found.b)), parts.row_tiles(found.gate, 64),
        mask, weights.scale, weights.shift, weights.a_bias, weights.a_gate_bias,
        weights.b_bias, weights.b_gate_bias, weights.gate_bias, found.mean, found.reciprocal,
        sizes.positions, EPS, C=sizes.pair, REGISTERS=parts.COMPUTING_REGISTERS,
    )  # fmt: skip
    return found
