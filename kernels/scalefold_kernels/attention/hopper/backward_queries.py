"""Gradients of queries and of the bias on Hopper GPUs; see `parts`.

One program: 64 queries of one head, for consecutive rows. The keys are dealt out to GROUPS warp
groups. The sum over rows of the gradient of the logits, which is the bias's, stays in shared
memory: in registers, it would leave too few for the rest.
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
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loader warp."""
    (
        q_desc, k_desc, v_desc, grad_desc, bias_desc, mask, mask_stride_r, mask_stride_k,
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, num_keys,
    ) = args  # fmt: skip
    blocks: gl.constexpr = GROUPS * NUM_BLOCKS
    if HAS_BIAS:
        mbarrier.expect(bias_full, blocks * 64 * BLOCK_K * 2)
        for block in gl.static_range(blocks):
            corner = [batch, head, first_q, block * BLOCK_K]
            tma.async_copy_global_to_shared(bias_desc, corner, bias_full, bias_smem.index(block))
    layout: gl.constexpr = gl.BlockedLayout([BLOCK_K // 32], [32], [1], [0])
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    for i in range(rows):
        row = first_row + i
        mbarrier.wait(query_empty, (i & 1) ^ 1)
        mbarrier.expect(query_full, 2 * 64 * C * 2)
        at = [batch, row, first_q, head, 0]
        tma.async_copy_global_to_shared(q_desc, at, query_full, query_smem.index(0))
        tma.async_copy_global_to_shared(grad_desc, at, query_full, query_smem.index(1))
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        for j in range(blocks):
            slot = stage * blocks + j
            mbarrier.expect(full.index(slot), 2 * BLOCK_K * C * 2)
            place = [batch, row, j * BLOCK_K, head, 0]
            tma.async_copy_global_to_shared(k_desc, place, full.index(slot), k_smem.index(slot))
            tma.async_copy_global_to_shared(v_desc, place, full.index(slot), v_smem.index(slot))
        unmasked = gl.to_tensor(0)
        for block in gl.static_range(blocks):
            keys = block * BLOCK_K + gl.arange(0, BLOCK_K, layout=layout)
            addresses = mask + row.to(gl.int64) * mask_stride_r + keys * mask_stride_k
            keep = gl.load(addresses, mask=keys < num_keys, other=0.0) != 0
            unmasked += gl.sum(keep.to(gl.int32), 0)
            added = gl.where(keep, 0.0, MASKED_LOGIT)
            added = gl.where(keys < num_keys, added, float("-inf"))
            mask_smem.index(stage * blocks + block).store(added)
        unmasked_smem.index(stage).store(gl.full([1], 0, gl.int32, one) + unmasked)
        for w in gl.static_range(GROUPS):
            mbarrier.arrive(full.index(stage * blocks + w * NUM_BLOCKS))


@gluon.jit
def products(
    q, grad, k_smem, v_smem, bias_smem, slot, place, full, phase,
    HAS_BIAS: gl.constexpr, C: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Start the logits and the gradients of the weights of a block of keys."""
    S: gl.constexpr = mma_layout(BLOCK_K)
    if HAS_BIAS:
        s = widen(bias_smem.index(place).reshape([64, BLOCK_K]).load(S))
    else:
        s = gl.full([64, BLOCK_K], 0.0, gl.float32, S)
    mbarrier.wait(full.index(slot), phase)
    k = k_smem.index(slot).reshape([BLOCK_K, C]).permute((1, 0))
    v = v_smem.index(slot).reshape([BLOCK_K, C]).permute((1, 0))
    s = warpgroup_mma(q, k, s, use_acc=HAS_BIAS, is_async=True)
    zero = gl.full([64, BLOCK_K], 0.0, gl.float32, S)
    grad_p = warpgroup_mma(grad, v, zero, use_acc=False, is_async=True)
    return s, grad_p


@gluon.jit
def differentiate(
    w, args,
    HAS_BIAS: gl.constexpr, SUM_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        grad_q_desc, lse, delta, statistics_stride, partial,
        query_smem, k_smem, v_smem, bias_smem, sums_smem, mask_smem, unmasked_smem, out_smem,
        others_smem, others_full, others_empty,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, num_rows, num_heads, num_queries, num_keys, scale,
    ) = args  # fmt: skip
    S: gl.constexpr = mma_layout(BLOCK_K)
    OUT: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    A_P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, S)
    by_column: gl.constexpr = gl.SliceLayout(0, S)
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    blocks: gl.constexpr = GROUPS * NUM_BLOCKS
    queries = first_q + gl.arange(0, 64, layout=by_row)
    inside = queries < num_queries
    first_place = w * NUM_BLOCKS
    if SUM_BIAS:
        for block in gl.static_range(NUM_BLOCKS):
            zero = gl.full([64, BLOCK_K], 0.0, gl.float32, S)
            sums_smem.index(first_place + block).store(zero)
    if HAS_BIAS:
        mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        stage = i % STAGES
        phase = (i // STAGES) & 1
        first_slot = stage * blocks + first_place
        start = ((batch * num_rows + row).to(gl.int64) * num_heads + head) * statistics_stride
        # Beyond the last query every weight is 0.
        lse_tile = gl.load(lse + start + queries, mask=inside, other=float("inf"))
        delta_tile = gl.load(delta + start + queries, mask=inside, other=0.0)
        mbarrier.wait(query_full, i & 1)
        q = query_smem.index(0).reshape([64, C]).load(A)
        grad = query_smem.index(1).reshape([64, C]).load(A)
        mbarrier.arrive(query_empty)
        q = (widen(q) * scale).to(q.dtype)
        mbarrier.wait(full.index(first_slot), phase)
        unmasked = gl.sum(unmasked_smem.index(stage).load(one), 0)
        grad_q = gl.full([64, C], 0.0, gl.float32, OUT)
        for j in range(NUM_BLOCKS):
            slot = first_slot + j
            s, grad_p = products(
                q, grad, k_smem, v_smem, bias_smem, slot, first_place + j, full, phase,
                HAS_BIAS, C, BLOCK_K,
            )  # fmt: skip
            s, grad_p = warpgroup_mma_wait(0, [s, grad_p])
            if unmasked < blocks * BLOCK_K:
                added = mask_smem.index(slot).load(by_column)
                added = gl.where((unmasked == 0) & (added == MASKED_LOGIT), 0.0, added)
                s = s * (unmasked > 0).to(gl.float32) + added[None, :]
            p = gl.exp2(s * LOG2E - lse_tile[:, None])
            grad_s = p * (grad_p - delta_tile[:, None])
            if SUM_BIAS:
                sums = sums_smem.index(first_place + j)
                sums.store(sums.load(S) + grad_s)
            grad_s = gl.convert_layout(grad_s.to(q.dtype), A_P)
            k = k_smem.index(slot).reshape([BLOCK_K, C])
            grad_q = warpgroup_mma(grad_s, k, grad_q)
        mbarrier.arrive(empty.index(stage))
        if w > 0:
            mbarrier.wait(others_empty, (i & 1) ^ 1)
            others_smem.index(w - 1).store(grad_q)
            mbarrier.arrive(others_full)
        else:
            mbarrier.wait(others_full, i & 1)
            for other in gl.static_range(GROUPS - 1):
                grad_q += others_smem.index(other).load(OUT)
            mbarrier.arrive(others_empty)
            tma.store_wait(0)
            out_smem.reshape([64, C]).store((grad_q * scale).to(q.dtype))
            fence_async_shared()
            at = [batch, row, first_q, head, 0]
            tma.async_copy_shared_to_global(grad_q_desc, at, out_smem)
    if SUM_BIAS:
        for block in gl.static_range(NUM_BLOCKS):
            keys = (first_place + block) * BLOCK_K + gl.arange(0, BLOCK_K, layout=by_column)
            offsets = queries[:, None].to(gl.int64) * num_keys + keys[None, :]
            both = inside[:, None] & (keys[None, :] < num_keys)
            gl.store(partial + offsets, sums_smem.index(first_place + block).load(S), mask=both)
    tma.store_wait(0)


@gluon.jit
def backward_queries_kernel(
    q_desc, k_desc, v_desc, grad_desc, bias_desc, grad_q_desc, mask, lse, delta, partial,
    mask_stride_b, mask_stride_r, mask_stride_k, statistics_stride,
    rows_per_program, num_rows, num_heads, num_queries, num_keys, scale,
    HAS_BIAS: gl.constexpr, SUM_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``partial`` (groups of rows, B, H, Q, K), float32."""
    num_q_blocks = gl.cdiv(num_queries, 64)
    first_q = gl.program_id(0) % num_q_blocks * 64
    head = gl.program_id(0) // num_q_blocks % num_heads
    group = gl.program_id(0) // (num_q_blocks * num_heads)
    first_row = group * rows_per_program
    rows = gl.minimum(num_rows - first_row, rows_per_program)
    batch = gl.program_id(1)

    dtype: gl.constexpr = q_desc.dtype
    blocks: gl.constexpr = GROUPS * NUM_BLOCKS
    slots: gl.constexpr = STAGES * blocks
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    queries: gl.constexpr = [1, 1, 64, 1, C]
    keys: gl.constexpr = [slots, 1, 1, BLOCK_K, 1, C]
    tile: gl.constexpr = [blocks if HAS_BIAS else 1, 1, 1, 64, BLOCK_K]
    sum_tiles: gl.constexpr = [blocks if SUM_BIAS else 1, 64, BLOCK_K]
    query_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 1, C], q_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, queries, q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, keys, k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, keys, k_desc.layout)
    bias_smem = gl.allocate_shared_memory(dtype, tile, bias_desc.layout)
    sums_layout: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    sums_smem = gl.allocate_shared_memory(gl.float32, sum_tiles, sums_layout)
    others_layout: gl.constexpr = gl.NVMMASharedLayout(min(4 * C, 128), 32, 2)
    others_smem = gl.allocate_shared_memory(gl.float32, [GROUPS - 1, 64, C], others_layout)
    mask_smem = gl.allocate_shared_memory(gl.float32, [slots, BLOCK_K], flat)
    unmasked_smem = gl.allocate_shared_memory(gl.int32, [STAGES, 1], flat)
    full = gl.allocate_shared_memory(gl.int64, [slots, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    more = gl.allocate_shared_memory(gl.int64, [5, 1], barrier)
    query_full, query_empty, bias_full = more.index(0), more.index(1), more.index(2)
    others_full, others_empty = more.index(3), more.index(4)
    for slot in gl.static_range(slots):
        # A group's first block is announced by the copy engine and, for the mask, the loader.
        mbarrier.init(full.index(slot), 2 if slot % NUM_BLOCKS == 0 else 1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(empty.index(stage), GROUPS)
    mbarrier.init(query_full, 1)
    mbarrier.init(query_empty, GROUPS)
    mbarrier.init(bias_full, 1)
    mbarrier.init(others_full, GROUPS - 1)
    mbarrier.init(others_empty, 1)

    mask += batch.to(gl.int64) * mask_stride_b
    if SUM_BIAS:
        place = (group * gl.num_programs(1) + batch).to(gl.int64) * num_heads + head
        partial += place * num_queries * num_keys
    load_args = (
        q_desc, k_desc, v_desc, grad_desc, bias_desc,
        mask, gl.to_tensor(mask_stride_r), gl.to_tensor(mask_stride_k),
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, gl.to_tensor(num_keys),
    )  # fmt: skip
    args = (
        grad_q_desc, lse, delta, gl.to_tensor(statistics_stride), partial,
        query_smem, k_smem, v_smem, bias_smem, sums_smem, mask_smem, unmasked_smem, out_smem,
        others_smem, others_full, others_empty,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, gl.to_tensor(num_rows), gl.to_tensor(num_heads),
        gl.to_tensor(num_queries), gl.to_tensor(num_keys), scale,
    )  # fmt: skip
    # fmt: off
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (differentiate, (gl.to_tensor(0), args, HAS_BIAS, SUM_BIAS, GROUPS, C,
                                 BLOCK_K, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(1), args, HAS_BIAS, SUM_BIAS, GROUPS, C,
                                 BLOCK_K, NUM_BLOCKS, STAGES)),
                (load_rows, (load_args, HAS_BIAS, GROUPS, C,
                             BLOCK_K, NUM_BLOCKS, STAGES)),
            ],
            [4, 1],
            [REGISTERS, LOADER_REGISTERS],
        )
    else:
        gl.static_assert(GROUPS == 4)
        gl.warp_specialize(
            [
                (differentiate, (gl.to_tensor(0), args, HAS_BIAS, SUM_BIAS, GROUPS, C,
                                 BLOCK_K, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(1), args, HAS_BIAS, SUM_BIAS, GROUPS, C,
                                 BLOCK_K, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(2), args, HAS_BIAS, SUM_BIAS, GROUPS, C,
                                 BLOCK_K, NUM_BLOCKS, STAGES)),
                (differentiate, (gl.to_tensor(3), args, HAS_BIAS, SUM_BIAS, GROUPS, C,
                                 BLOCK_K, NUM_BLOCKS, STAGES)),
                (load_rows, (load_args, HAS_BIAS, GROUPS, C,
                             BLOCK_K, NUM_BLOCKS, STAGES)),
            ],
            [4, 4, 4, 1],
            [REGISTERS, REGISTERS, REGISTERS, LOADER_REGISTERS],
        )
    # fmt: on
