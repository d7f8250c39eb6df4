"""Forward kernel for Hopper GPUs; see `parts`.

One program: GROUPS * 64 queries of one head, for consecutive rows; each warp group has 64 queries
and goes through the keys in blocks. While one takes exponentials, the other uses the tensor cores.
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
    reciprocal,
    row_max,
    row_sum,
    widen,
)


@gluon.jit
def load_rows(
    args,
    HAS_GATE: gl.constexpr, HAS_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loader warp."""
    (
        q_desc, k_desc, v_desc, gate_desc, bias_desc, mask, mask_stride_r, mask_stride_k,
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, num_keys,
    ) = args  # fmt: skip
    if HAS_BIAS:
        mbarrier.expect(bias_full, GROUPS * NUM_BLOCKS * 64 * BLOCK_K * 2)
        for w in gl.static_range(GROUPS):
            for block in gl.static_range(NUM_BLOCKS):
                corner = [batch, head, first_q + w * 64, block * BLOCK_K]
                bias_tile = bias_smem.index(w * NUM_BLOCKS + block)
                tma.async_copy_global_to_shared(bias_desc, corner, bias_full, bias_tile)
    layout: gl.constexpr = gl.BlockedLayout([BLOCK_K // 32], [32], [1], [0])
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    for i in range(rows):
        row = first_row + i
        mbarrier.wait(query_empty, (i & 1) ^ 1)
        mbarrier.expect(query_full, (2 if HAS_GATE else 1) * GROUPS * 64 * C * 2)
        for w in gl.static_range(GROUPS):
            at = [batch, row, first_q + w * 64, head, 0]
            tma.async_copy_global_to_shared(q_desc, at, query_full, query_smem.index(2 * w))
            if HAS_GATE:
                gate_tile = query_smem.index(2 * w + 1)
                tma.async_copy_global_to_shared(gate_desc, at, query_full, gate_tile)
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        for j in range(NUM_BLOCKS):
            slot = stage * NUM_BLOCKS + j
            mbarrier.expect(full.index(slot), 2 * BLOCK_K * C * 2)
            place = [batch, row, j * BLOCK_K, head, 0]
            tma.async_copy_global_to_shared(k_desc, place, full.index(slot), k_smem.index(slot))
            tma.async_copy_global_to_shared(v_desc, place, full.index(slot), v_smem.index(slot))
        unmasked = gl.to_tensor(0)
        for block in gl.static_range(NUM_BLOCKS):
            keys = block * BLOCK_K + gl.arange(0, BLOCK_K, layout=layout)
            addresses = mask + row.to(gl.int64) * mask_stride_r + keys * mask_stride_k
            keep = gl.load(addresses, mask=keys < num_keys, other=0.0) != 0
            unmasked += gl.sum(keep.to(gl.int32), 0)
            added = gl.where(keep, 0.0, MASKED_LOGIT)
            added = gl.where(keys < num_keys, added, float("-inf"))
            mask_smem.index(stage * NUM_BLOCKS + block).store(added)
        unmasked_smem.index(stage).store(gl.full([1], 0, gl.int32, one) + unmasked)
        mbarrier.arrive(full.index(stage * NUM_BLOCKS))


@gluon.jit
def logits(
    q, k_smem, bias_smem, slot, place, full, phase,
    HAS_BIAS: gl.constexpr, C: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Start the product of queries and a block of keys, on top of the bias."""
    S: gl.constexpr = mma_layout(BLOCK_K)
    if HAS_BIAS:
        s = widen(bias_smem.index(place).reshape([64, BLOCK_K]).load(S))
    else:
        s = gl.full([64, BLOCK_K], 0.0, gl.float32, S)
    mbarrier.wait(full.index(slot), phase)
    k = k_smem.index(slot).reshape([BLOCK_K, C]).permute((1, 0))
    return warpgroup_mma(q, k, s, use_acc=HAS_BIAS, is_async=True)


@gluon.jit
def attend(
    w, args,
    HAS_GATE: gl.constexpr, HAS_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        out_desc, lse, lse_stride,
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem, out_smem,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, num_rows, num_heads, num_queries, scale,
    ) = args  # fmt: skip
    S: gl.constexpr = mma_layout(BLOCK_K)
    OUT: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    A_P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, S)
    first_q += w * 64
    queries = first_q + gl.arange(0, 64, layout=by_row)
    if HAS_BIAS:
        mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        stage = i % STAGES
        phase = (i // STAGES) & 1
        first_slot = stage * NUM_BLOCKS
        mbarrier.wait(query_full, i & 1)
        q = query_smem.index(2 * w).reshape([64, C]).load(A)
        if HAS_GATE:
            gate = query_smem.index(2 * w + 1).reshape([64, C]).load(OUT)
        mbarrier.arrive(query_empty)
        q = (widen(q) * scale).to(q.dtype)
        one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        mbarrier.wait(full.index(first_slot), phase)
        unmasked = gl.sum(unmasked_smem.index(stage).load(one), 0)
        highest = gl.full([64], float("-inf"), gl.float32, by_row)
        total = gl.full([64], 0.0, gl.float32, by_row)
        o = gl.full([64, C], 0.0, gl.float32, OUT)
        for j in range(NUM_BLOCKS):
            slot = first_slot + j
            s = logits(
                q, k_smem, bias_smem, slot, w * NUM_BLOCKS + j, full, phase, HAS_BIAS, C, BLOCK_K
            )
            s = warpgroup_mma_wait(0, [s])
            if unmasked < NUM_BLOCKS * BLOCK_K:
                added = mask_smem.index(slot).load(gl.SliceLayout(0, S))
                added = gl.where((unmasked == 0) & (added == MASKED_LOGIT), 0.0, added)
                s = s * (unmasked > 0).to(gl.float32) + added[None, :]
            new_highest = gl.maximum(highest, row_max(s) * LOG2E)
            p = gl.exp2(s * LOG2E - new_highest[:, None])
            shrink = gl.exp2(highest - new_highest)
            total = total * shrink + row_sum(p)
            o *= gl.convert_layout(shrink, gl.SliceLayout(1, OUT))[:, None]
            p = gl.convert_layout(p.to(q.dtype), A_P)
            o = warpgroup_mma(p, v_smem.index(slot).reshape([BLOCK_K, C]), o)
            highest = new_highest
        start = ((batch * num_rows + row).to(gl.int64) * num_heads + head) * lse_stride
        gl.store(lse + start + queries, highest + gl.log2(total), mask=queries < num_queries)
        divisor = gl.convert_layout(total, gl.SliceLayout(1, OUT))[:, None]
        if HAS_GATE:
            divisor = divisor * (1.0 + gl.exp2(-LOG2E * widen(gate)))
        result = o * reciprocal(divisor)
        mbarrier.arrive(empty.index(stage))
        tma.store_wait(0)
        out_smem.index(w).reshape([64, C]).store(result.to(q.dtype))
        fence_async_shared()
        at = [batch, row, first_q, head, 0]
        tma.async_copy_shared_to_global(out_desc, at, out_smem.index(w))
    tma.store_wait(0)


@gluon.jit
def forward_kernel(
    q_desc, k_desc, v_desc, gate_desc, bias_desc, out_desc, mask, lse,
    mask_stride_b, mask_stride_r, mask_stride_k, lse_stride,
    rows_per_program, num_rows, num_heads, num_queries, num_keys, scale,
    HAS_GATE: gl.constexpr, HAS_BIAS: gl.constexpr, GROUPS: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module."""
    num_q_blocks = gl.cdiv(num_queries, 64 * GROUPS)
    first_q = gl.program_id(0) % num_q_blocks * (64 * GROUPS)
    head = gl.program_id(0) // num_q_blocks % num_heads
    first_row = gl.program_id(0) // (num_q_blocks * num_heads) * rows_per_program
    rows = gl.minimum(num_rows - first_row, rows_per_program)
    batch = gl.program_id(1)

    dtype: gl.constexpr = q_desc.dtype
    slots: gl.constexpr = STAGES * NUM_BLOCKS
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    query_smem = gl.allocate_shared_memory(dtype, [2 * GROUPS, 1, 1, 64, 1, C], q_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, 64, 1, C], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [slots, 1, 1, BLOCK_K, 1, C], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [slots, 1, 1, BLOCK_K, 1, C], k_desc.layout)
    tiles: gl.constexpr = GROUPS * NUM_BLOCKS if HAS_BIAS else 1
    bias_smem = gl.allocate_shared_memory(dtype, [tiles, 1, 1, 64, BLOCK_K], bias_desc.layout)
    mask_smem = gl.allocate_shared_memory(gl.float32, [slots, BLOCK_K], flat)
    unmasked_smem = gl.allocate_shared_memory(gl.int32, [STAGES, 1], flat)
    full = gl.allocate_shared_memory(gl.int64, [slots, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    query_full, query_empty, bias_full = others.index(0), others.index(1), others.index(2)
    for slot in gl.static_range(slots):
        # The first block of a row is announced by the copy engine and, for the mask, the loader.
        mbarrier.init(full.index(slot), 2 if slot % NUM_BLOCKS == 0 else 1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(empty.index(stage), GROUPS)
    mbarrier.init(query_full, 1)
    mbarrier.init(query_empty, GROUPS)
    mbarrier.init(bias_full, 1)

    mask += batch.to(gl.int64) * mask_stride_b
    load_args = (
        q_desc, k_desc, v_desc, gate_desc, bias_desc,
        mask, gl.to_tensor(mask_stride_r), gl.to_tensor(mask_stride_k),
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, gl.to_tensor(num_keys),
    )  # fmt: skip
    args = (
        out_desc, lse, gl.to_tensor(lse_stride),
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem, out_smem,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows,
        gl.to_tensor(num_rows), gl.to_tensor(num_heads), gl.to_tensor(num_queries), scale,
    )  # fmt: skip
    # fmt: off
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (gl.to_tensor(0), args, HAS_GATE, HAS_BIAS, GROUPS, C,
                          BLOCK_K, NUM_BLOCKS, STAGES)),
                (attend, (gl.to_tensor(1), args, HAS_GATE, HAS_BIAS, GROUPS, C,
                          BLOCK_K, NUM_BLOCKS, STAGES)),
                (load_rows, (load_args, HAS_GATE, HAS_BIAS, GROUPS, C,
                             BLOCK_K, NUM_BLOCKS, STAGES)),
            ],
            [4, 1],
            [REGISTERS, LOADER_REGISTERS],
        )
    else:
        gl.static_assert(GROUPS == 4)
        gl.warp_specialize(
            [
                (attend, (gl.to_tensor(0), args, HAS_GATE, HAS_BIAS, GROUPS, C,
                          BLOCK_K, NUM_BLOCKS, STAGES)),
                (attend, (gl.to_tensor(1), args, HAS_GATE, HAS_BIAS, GROUPS, C,
                          BLOCK_K, NUM_BLOCKS, STAGES)),
                (attend, (gl.to_tensor(2), args, HAS_GATE, HAS_BIAS, GROUPS, C,
                          BLOCK_K, NUM_BLOCKS, STAGES)),
                (attend, (gl.to_tensor(3), args, HAS_GATE, HAS_BIAS, GROUPS, C,
                          BLOCK_K, NUM_BLOCKS, STAGES)),
                (load_rows, (load_args, HAS_GATE, HAS_BIAS, GROUPS, C,
                             BLOCK_K, NUM_BLOCKS, STAGES)),
            ],
            [4, 4, 4, 1],
            [REGISTERS, REGISTERS, REGISTERS, LOADER_REGISTERS],
        )
    # fmt: on
