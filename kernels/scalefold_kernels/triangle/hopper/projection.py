"""Projection of triangle multiplication on Hopper GPUs; see `parts`, and `..kernel` for names."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from scalefold_kernels.triangle.hopper.parts import (
    LOADER_REGISTERS,
    TILE,
    columns,
    mma_layout,
    opaque_zero,
    sigmoid,
    standardise,
    widen,
)


@gluon.jit
def load_tiles(args, C: gl.constexpr, GROUPS: gl.constexpr):
    """The loader warp."""
    weights, z_desc, weight_smem, z_smem, weight_full, full, empty, P = args
    mbarrier.expect(weight_full, 5 * C * C * 2)
    for i in gl.static_range(5):
        tma.async_copy_global_to_shared(weights[i], [0, 0], weight_full, weight_smem.index(i))
    rounds = gl.cdiv(gl.cdiv(P, TILE), gl.num_programs(0) * GROUPS)
    for i in range(rounds):
        for w in gl.static_range(GROUPS):
            first = ((i * GROUPS + w) * gl.num_programs(0) + gl.program_id(0)) * TILE
            if first < P:
                mbarrier.wait(empty.index(w), (i & 1) ^ 1)
                mbarrier.expect(full.index(w), TILE * C * 2)
                tma.async_copy_global_to_shared(z_desc, [first, 0], full.index(w), z_smem.index(w))


@gluon.jit
def project(
    w, args, C: gl.constexpr, GROUPS: gl.constexpr
):  # fmt: skip
    """Warp group ``w``."""
    (
        operands, gate_desc, mask, norm_weight, norm_bias, biases, mean, reciprocal,
        weight_smem, z_smem, out_smem, weight_full, full, empty, P, eps,
    ) = args  # fmt: skip
    S: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    dtype: gl.constexpr = gate_desc.dtype
    out = out_smem.index(w)
    turned = out._reinterpret(dtype, [C, TILE], operands[0].layout).permute((1, 0))
    mbarrier.wait(weight_full, 0)
    rounds = gl.cdiv(gl.cdiv(P, TILE), gl.num_programs(0) * GROUPS)
    for i in range(rounds):
        first = ((i * GROUPS + w) * gl.num_programs(0) + gl.program_id(0)) * TILE
        if first < P:
            position = first + gl.arange(0, TILE, layout=gl.SliceLayout(1, S))
            inside = position < P
            mask_P = gl.load(mask + position, mask=inside, other=0.0).to(gl.float32)
            mbarrier.wait(full.index(w), i & 1)
            x = widen(z_smem.index(w).load(S))
            mbarrier.arrive(empty.index(w))
            standard, mean_P, reciprocal_P = standardise(x, eps)
            gl.store(mean + position, mean_P, mask=inside)
            gl.store(reciprocal + position, reciprocal_P, mask=inside)
            normed = standard * columns(norm_weight, S)
            normed = (normed + columns(norm_bias, S)).to(dtype)
            normed = gl.convert_layout(normed, A)
            zero = gl.full([TILE, C], 0.0, gl.float32, S)
            for side in gl.static_range(2):
                place = opaque_zero() + 2 * side
                gate_w = weight_smem.index(place + 1).permute((1, 0))
                weight = weight_smem.index(place).permute((1, 0))
                opened = warpgroup_mma(normed, gate_w, zero, use_acc=False, is_async=True)
                value = warpgroup_mma(normed, weight, zero, use_acc=False, is_async=True)
                opened = warpgroup_mma_wait(1, [opened])
                opened = sigmoid(opened + columns(biases[2 * side + 1], S))
                opened *= mask_P[:, None]
                value = warpgroup_mma_wait(0, [value])
                value = (value + columns(biases[2 * side], S)) * opened
                tma.store_wait(0)
                turned.store(value.to(dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(
                    operands[side], [0, first],
                    out._reinterpret(dtype, [C, TILE], operands[0].layout),
                )  # fmt: skip
            weight = weight_smem.index(opaque_zero() + 4).permute((1, 0))
            logit = warpgroup_mma(normed, weight, zero, use_acc=False)
            logit += columns(biases[4], S)
            tma.store_wait(0)
            out.store(logit.to(dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(gate_desc, [first, 0], out)
    tma.store_wait(0)


@gluon.jit
def projection_forward_kernel(
    z_desc, a_weight_desc, a_gate_weight_desc, b_weight_desc, b_gate_weight_desc, gate_weight_desc,
    a_desc, b_desc, gate_desc, mask, norm_weight, norm_bias,
    a_bias, a_gate_bias, b_bias, b_gate_bias, gate_bias, mean, reciprocal, P, eps,
    C: gl.constexpr, GROUPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Masked operands (C, P), gate (P, Z), statistics (P,)."""
    dtype: gl.constexpr = z_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    weight_smem = gl.allocate_shared_memory(dtype, [5, C, C], a_weight_desc.layout)
    z_smem = gl.allocate_shared_memory(dtype, [GROUPS, TILE, C], z_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [GROUPS, TILE, C], gate_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barrier)
    more = gl.allocate_shared_memory(gl.int64, [1, 1], barrier)
    for w in gl.static_range(GROUPS):
        mbarrier.init(full.index(w), 1)
        mbarrier.init(empty.index(w), 1)
    weight_full = more.index(0)
    mbarrier.init(weight_full, 1)
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
            (project, (gl.to_tensor(0), args, C, GROUPS)),
            (project, (gl.to_tensor(1), args, C, GROUPS)),
            (load_tiles, (load_args, C, GROUPS)),
        ],
        [4, 1],
        [REGISTERS, LOADER_REGISTERS],
    )
