"""Gradients of keys and values on Hopper GPUs; see `parts`.

One program: GROUPS * 64 keys of one head, for consecutive rows; each warp group has 64 keys and
goes through the queries in blocks. Logits are transposed (keys x queries), so that the weights are
left operands of the two products that give the gradients, from registers as they are.
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

from scalefold_kernels.attention.hopper.parts import (
    LOADER_REGISTERS,
    LOG2E,
    MASKED_LOGIT,
    mma_layout,
    widen,
)


@gluon.jit
def load_rows(
    args,
    HAS_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_Q: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loader warp."""
    (
        q_desc, k_desc, v_desc, grad_desc, lse_desc, delta_desc, bias_desc,
        mask, mask_stride_r, mask_stride_k,
        key_smem, q_smem, grad_smem, statistics_smem, bias_smem, mask_smem, unmasked_smem,
        keys_full, keys_empty, full, empty, bias_full,
        batch, head, first_k, first_row, rows, num_keys,
    ) = args  # fmt: skip
    if HAS_BIAS:
        mbarrier.expect(bias_full, GROUPS * NUM_BLOCKS * 64 * BLOCK_Q * 2)
        for w in gl.static_range(GROUPS):
            for block in gl.static_range(NUM_BLOCKS):
                corner = [batch, head, block * BLOCK_Q, first_k + w * 64]
                bias_tile = bias_smem.index(w * NUM_BLOCKS + block)
                tma.async_copy_global_to_shared(bias_desc, corner, bias_full, bias_tile)
    four: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    two: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    for i in range(rows):
        row = first_row + i
        mbarrier.wait(keys_empty, (i & 1) ^ 1)
        mbarrier.expect(keys_full, 2 * GROUPS * 64 * C * 2)
        for w in gl.static_range(GROUPS):
            at = [batch, row, first_k + w * 64, head, 0]
            tma.async_copy_global_to_shared(k_desc, at, keys_full, key_smem.index(2 * w))
            tma.async_copy_global_to_shared(v_desc, at, keys_full, key_smem.index(2 * w + 1))
        mask_row = mask + row.to(gl.int64) * mask_stride_r
        unmasked = gl.to_tensor(0)
        for first in range(0, num_keys, 128):
            some = first + gl.arange(0, 128, layout=four)
            kept = gl.load(mask_row + some * mask_stride_k, mask=some < num_keys, other=0.0) != 0
            unmasked += gl.sum(kept.to(gl.int32), 0)
        for w in gl.static_range(GROUPS):
            own = first_k + w * 64 + gl.arange(0, 64, layout=two)
            keep = gl.load(mask_row + own * mask_stride_k, mask=own < num_keys, other=0.0) != 0
            mask_smem.index(w).store(gl.where(keep | (unmasked == 0), 0.0, MASKED_LOGIT))
        unmasked_smem.store(gl.full([1], 0, gl.int32, one) + unmasked)
        mbarrier.arrive(keys_full)
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        for j in range(NUM_BLOCKS):
            slot = stage * NUM_BLOCKS + j
            ready = full.index(slot)
            mbarrier.expect(ready, 2 * BLOCK_Q * C * 2 + 2 * BLOCK_Q * 4)
            corner_q = [batch, row, j * BLOCK_Q, head, 0]
            tma.async_copy_global_to_shared(q_desc, corner_q, ready, q_smem.index(slot))
            tma.async_copy_global_to_shared(grad_desc, corner_q, ready, grad_smem.index(slot))
            place = [batch, row, head, j * BLOCK_Q]
            tile = statistics_smem.index(2 * slot)
            tma.async_copy_global_to_shared(lse_desc, place, ready, tile)
            tile = statistics_smem.index(2 * slot + 1)
            tma.async_copy_global_to_shared(delta_desc, place, ready, tile)


@gluon.jit
def products(
    k, v, q_smem, grad_smem, bias_smem, slot, place, full, phase,
    HAS_BIAS: gl.constexpr, C: gl.constexpr, BLOCK_Q: gl.constexpr,
):  # fmt: skip
    """Start the logits and the gradients of the weights of a block of queries."""
    S: gl.constexpr = mma_layout(BLOCK_Q)
    if HAS_BIAS:
        s = widen(bias_smem.index(place).reshape([BLOCK_Q, 64]).permute((1, 0)).load(S))
    else:
        s = gl.full([64, BLOCK_Q], 0.0, gl.float32, S)
    mbarrier.wait(full.index(slot), phase)
    q = q_smem.index(slot).reshape([BLOCK_Q, C]).permute((1, 0))
    grad = grad_smem.index(slot).reshape([BLOCK_Q, C]).permute((1, 0))
    s = warpgroup_mma(k, q, s, use_acc=HAS_BIAS, is_async=True)
    zero = gl.full([64, BLOCK_Q], 0.0, gl.float32, S)
    grad_p = warpgroup_mma(v, grad, zero, use_acc=False, is_async=True)
    return s, grad_p


@gluon.jit
def differentiate(
    w, args,
    HAS_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_Q: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        grad_k_desc, grad_v_desc,
        key_smem, q_smem, grad_smem, statistics_smem, bias_smem, mask_smem, unmasked_smem,
        out_smem, keys_full, keys_empty, full, empty, bias_full,
        batch, head, first_k, first_row, rows, num_keys, scale,
    ) = args  # fmt: skip
    S: gl.constexpr = mma_layout(BLOCK_Q)
    OUT: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    A_P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    by_column: gl.constexpr = gl.SliceLayout(0, S)
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    first_k += w * 64
    if HAS_BIAS:
        mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        stage = i % STAGES
        phase = (i // STAGES) & 1
        first_slot = stage * NUM_BLOCKS
        mbarrier.wait(keys_full, i & 1)
        k = key_smem.index(2 * w).reshape([64, C]).load(A)
        v = key_smem.index(2 * w + 1).reshape([64, C]).load(A)
        added = mask_smem.index(w).load(gl.SliceLayout(1, S))
        unmasked = gl.sum(unmasked_smem.load(one), 0)
        mbarrier.arrive(keys_empty)
        k = (widen(k) * scale).to(k.dtype)
        grad_k = gl.full([64, C], 0.0, gl.float32, OUT)
        grad_v = gl.full([64, C], 0.0, gl.float32, OUT)
        for j in range(NUM_BLOCKS):
            slot = first_slot + j
            s, grad_p = products(
                k, v, q_smem, grad_smem, bias_smem, slot, w * NUM_BLOCKS + j, full, phase,
                HAS_BIAS, C, BLOCK_Q,
            )  # fmt: skip
            # Loaded once the loader has announced the block.
            lse = statistics_smem.index(2 * slot).reshape([BLOCK_Q]).load(by_column)
            delta = statistics_smem.index(2 * slot + 1).reshape([BLOCK_Q]).load(by_column)
            s, grad_p = warpgroup_mma_wait(0, [s, grad_p])
            if unmasked < num_keys:
                s = s * (unmasked > 0).to(gl.float32) + added[:, None]
            p = gl.exp2(s * LOG2E - lse[None, :])
            grad_s = p * (grad_p - delta[None, :])
            p = gl.convert_layout(p.to(k.dtype), A_P)
            grad = grad_smem.index(slot).reshape([BLOCK_Q, C])
            grad_v = warpgroup_mma(p, grad, grad_v, is_async=True)
            grad_s = gl.convert_layout(grad_s.to(k.dtype), A_P)
            q = q_smem.index(slot).reshape([BLOCK_Q, C])
            grad_k = warpgroup_mma(grad_s, q, grad_k, is_async=True)
            grad_v, grad_k = warpgroup_mma_wait(0, [grad_v, grad_k])
        mbarrier.arrive(empty.index(stage))
        tma.store_wait(0)
        out_smem.index(2 * w).reshape([64, C]).store((grad_k * scale).to(k.dtype))
        out_smem.index(2 * w + 1).reshape([64, C]).store(grad_v.to(k.dtype))
        fence_async_shared()
        at = [batch, row, first_k, head, 0]
        tma.async_copy_shared_to_global(grad_k_desc, at, out_smem.index(2 * w))
        tma.async_copy_shared_to_global(grad_v_desc, at, out_smem.index(2 * w + 1))
    tma.store_wait(0)


@gluon.jit
def backward_keys_kernel(
    q_desc, k_desc, v_desc, grad_desc, lse_desc, delta_desc, bias_desc, grad_k_desc, grad_v_desc,
    mask, mask_stride_b, mask_stride_r, mask_stride_k,
    rows_per_program, num_rows, num_heads, num_keys, scale,
    HAS_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_Q: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. Queries beyond the last read as zeros and so add nothing."""
    num_k_blocks = gl.cdiv(num_keys, 64 * GROUPS)
    first_k = gl.program_id(0) % num_k_blocks * (64 * GROUPS)
    head = gl.program_id(0) // num_k_blocks % num_heads
    first_row = gl.program_id(0) // (num_k_blocks * num_heads) * rows_per_program
    rows = gl.minimum(num_rows - first_row, rows_per_program)
    batch = gl.program_id(1)

    dtype: gl.constexpr = q_desc.dtype
    slots: gl.constexpr = STAGES * NUM_BLOCKS
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    keys: gl.constexpr = [2 * GROUPS, 1, 1, 64, 1, C]
    queries: gl.constexpr = [slots, 1, 1, BLOCK_Q, 1, C]
    tiles: gl.constexpr = GROUPS * NUM_BLOCKS if HAS_BIAS else 1
    key_smem = gl.allocate_shared_memory(dtype, keys, k_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, keys, k_desc.layout)
    q_smem = gl.allocate_shared_memory(dtype, queries, q_desc.layout)
    grad_smem = gl.allocate_shared_memory(dtype, queries, q_desc.layout)
    numbers: gl.constexpr = [2 * slots, 1, 1, 1, BLOCK_Q]
    statistics_smem = gl.allocate_shared_memory(gl.float32, numbers, lse_desc.layout)
    bias_smem = gl.allocate_shared_memory(dtype, [tiles, 1, 1, BLOCK_Q, 64], bias_desc.layout)
    mask_smem = gl.allocate_shared_memory(gl.float32, [GROUPS, 64], flat)
    unmasked_smem = gl.allocate_shared_memory(gl.int32, [1], flat)
    full = gl.allocate_shared_memory(gl.int64, [slots, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    keys_full, keys_empty, bias_full = others.index(0), others.index(1), others.index(2)
    for slot in gl.static_range(slots):
        mbarrier.init(full.index(slot), 1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(empty.index(stage), GROUPS)
    # Keys are announced by the copy engine and, for the mask, by the loader.
    mbarrier.init(keys_full, 2)
    mbarrier.init(keys_empty, GROUPS)
    mbarrier.init(bias_full, 1)

    mask += batch.to(gl.int64) * mask_stride_b
    load_args = (
        q_desc, k_desc, v_desc, grad_desc, lse_desc, delta_desc, bias_desc,
        mask, gl.to_tensor(mask_stride_r), gl.to_tensor(mask_stride_k),
        key_smem, q_smem, grad_smem, statistics_smem, bias_smem, mask_smem, unmasked_smem,
        keys_full, keys_empty, full, empty, bias_full,
        batch, head, first_k, first_row, rows, gl.to_tensor(num_keys),
    )  # fmt: skip
    args = (
        grad_k_desc, grad_v_desc,
        key_smem, q_smem, grad_smem, statistics_smem, bias_smem, mask_smem, unmasked_smem,
        out_smem, keys_full, keys_empty, full, empty, bias_full,
        batch, head, first_k, first_row, rows, gl.to_tensor(num_keys), scale,
    )  # fmt: skip
    # fmt: off
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (differentiate, (gl.to_tensor(0), args, HAS_BIAS, GROUPS, C,
                                 BLOCK_Q, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(1), args, HAS_BIAS, GROUPS, C,
                                 BLOCK_Q, NUM_BLOCKS, STAGES)),
                (load_rows, (load_args, HAS_BIAS, GROUPS, C,
                             BLOCK_Q, NUM_BLOCKS, STAGES)),
            ],
            [4, 1],
            [REGISTERS, LOADER_REGISTERS],
        )
    else:
        gl.static_assert(GROUPS == 4)
        gl.warp_specialize(
            [
                (differentiate, (gl.to_tensor(0), args, HAS_BIAS, GROUPS, C,
                                 BLOCK_Q, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(1), args, HAS_BIAS, GROUPS, C,
                                 BLOCK_Q, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(2), args, HAS_BIAS, GROUPS, C,
                                 BLOCK_Q, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(3), args, HAS_BIAS, GROUPS, C,
                                 BLOCK_Q, NUM_BLOCKS, STAGES)),
                (load_rows, (load_args, HAS_BIAS, GROUPS, C,
                             BLOCK_Q, NUM_BLOCKS, STAGES)),
            ],
            [4, 4, 4, 1],
            [REGISTERS, REGISTERS, REGISTERS, LOADER_REGISTERS],
        )
    # fmt: on
