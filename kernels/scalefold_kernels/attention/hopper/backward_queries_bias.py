"""Gradients of queries and of the bias on Hopper GPUs, for up to 256 keys; see `parts`.

Two warp groups share a program's keys, 128 each, and a loader warp works for both. The sum over
rows of the gradient of the logits, which is the bias's, stays in registers.
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
    LOG2E,
    count,
    load_keys,
    load_mask,
    store_mask,
)
from scalefold_kernels.hopper import mma_layout, widen

BLOCK_K = gl.constexpr(128)
STAGES = gl.constexpr(2)
"""Rows of which keys and values are in shared memory."""

REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)
"""Of a thread; what the loader gives up goes to the warp groups."""


@gluon.jit
def load_rows(args, C: gl.constexpr):
    """The loader warp."""
    (
        q_desc, k_desc, v_desc, grad_desc, bias_desc, mask, mask_stride_r, mask_stride_k,
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, num_keys,
    ) = args  # fmt: skip
    mbarrier.expect(bias_full, 2 * 64 * BLOCK_K * 2)
    for w in gl.static_range(2):
        corner = [batch, head, first_q, w * BLOCK_K]
        tma.async_copy_global_to_shared(bias_desc, corner, bias_full, bias_smem.index(w))
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
        for w in gl.static_range(2):
            slot = 2 * stage + w
            load_keys(
                k_desc, v_desc, k_smem.index(slot), v_smem.index(slot), full.index(slot),
                batch, row, w * BLOCK_K, head, True, C, BLOCK_K,
            )  # fmt: skip
        kept = load_mask(mask, mask_stride_r, mask_stride_k, row, num_keys, 2 * BLOCK_K)
        unmasked = count(kept)
        if unmasked < 2 * BLOCK_K:
            store_mask(
                mask, mask_stride_r, mask_stride_k, row, 0, num_keys, unmasked,
                mask_smem, 2 * stage, BLOCK_K, 2,
            )  # fmt: skip
        unmasked_smem.index(stage).store(gl.full([1], 0, gl.int32, one) + unmasked)
        for w in gl.static_range(2):
            mbarrier.arrive(full.index(2 * stage + w))


@gluon.jit
def differentiate(w, args, C: gl.constexpr):
    """Warp group ``w``. The first adds the gradients of queries of both."""
    (
        grad_q_desc, lse, delta, statistics_stride, partial,
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem, out_smem,
        other_smem, other_full, other_empty,
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
    queries = first_q + gl.arange(0, 64, layout=by_row)
    inside = queries < num_queries
    sums = gl.full([64, BLOCK_K], 0.0, gl.float32, S)
    mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        stage = i % STAGES
        slot = 2 * stage + w
        start = ((batch * num_rows + row).to(gl.int64) * num_heads + head) * statistics_stride
        # Beyond the last query every weight is 0.
        lse_tile = gl.load(lse + start + queries, mask=inside, other=float("inf"))
        delta_tile = gl.load(delta + start + queries, mask=inside, other=0.0)
        mbarrier.wait(query_full, i & 1)
        q = query_smem.index(0).reshape([64, C]).load(A)
        q = (widen(q) * scale).to(q.dtype)
        grad_out = query_smem.index(1).reshape([64, C])
        mbarrier.wait(full.index(slot), (i // STAGES) & 1)
        unmasked = gl.sum(unmasked_smem.index(stage).load(one), 0)
        k = k_smem.index(slot).reshape([BLOCK_K, C])
        v = v_smem.index(slot).reshape([BLOCK_K, C])
        s = widen(bias_smem.index(w).reshape([64, BLOCK_K]).load(S))
        s = warpgroup_mma(q, k.permute((1, 0)), s, is_async=True)
        grad_p = gl.full([64, BLOCK_K], 0.0, gl.float32, S)
        grad_p = warpgroup_mma(grad_out, v.permute((1, 0)), grad_p, use_acc=False, is_async=True)
        s, grad_p = warpgroup_mma_wait(0, [s, grad_p])
        mbarrier.arrive(query_empty)
        if unmasked < 2 * BLOCK_K:
            added = mask_smem.index(slot).load(by_column).to(gl.float32)
            s = s * (unmasked > 0).to(gl.float32) + added[None, :]
        p = gl.exp2(s * LOG2E - lse_tile[:, None])
        grad_s = p * (grad_p - delta_tile[:, None])
        sums += grad_s
        grad_s = gl.convert_layout(grad_s.to(q.dtype), A_P)
        grad_q = gl.full([64, C], 0.0, gl.float32, OUT)
        grad_q = warpgroup_mma(grad_s, k, grad_q, use_acc=False)
        mbarrier.arrive(empty.index(stage))
        if w > 0:
            mbarrier.wait(other_empty, (i & 1) ^ 1)
            other_smem.store(grad_q)
            mbarrier.arrive(other_full)
        else:
            mbarrier.wait(other_full, i & 1)
            grad_q += other_smem.load(OUT)
            mbarrier.arrive(other_empty)
            tma.store_wait(0)
            out_smem.reshape([64, C]).store((grad_q * scale).to(q.dtype))
            fence_async_shared()
            at = [batch, row, first_q, head, 0]
            tma.async_copy_shared_to_global(grad_q_desc, at, out_smem)
    keys = w * BLOCK_K + gl.arange(0, BLOCK_K, layout=by_column)
    tile = queries[:, None].to(gl.int64) * num_keys + keys[None, :]
    gl.store(partial + tile, sums, mask=inside[:, None] & (keys[None, :] < num_keys))
    tma.store_wait(0)


@gluon.jit
def backward_queries_bias_kernel(
    q_desc, k_desc, v_desc, grad_desc, bias_desc, grad_q_desc, lse, delta, mask, partial,
    mask_stride_b, mask_stride_r, mask_stride_k, statistics_stride,
    rows_per_program, num_rows, num_heads, num_queries, num_keys, scale,
    C: gl.constexpr,
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
    slots: gl.constexpr = 2 * STAGES
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    query_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 1, C], q_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [1, 1, 64, 1, C], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [slots, 1, 1, BLOCK_K, 1, C], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [slots, 1, 1, BLOCK_K, 1, C], k_desc.layout)
    bias_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, BLOCK_K], bias_desc.layout)
    other_layout: gl.constexpr = gl.NVMMASharedLayout(min(4 * C, 128), 32, 2)
    other_smem = gl.allocate_shared_memory(gl.float32, [64, C], other_layout)
    mask_smem = gl.allocate_shared_memory(gl.bfloat16, [slots, BLOCK_K], flat)
    unmasked_smem = gl.allocate_shared_memory(gl.int32, [STAGES, 1], flat)
    full = gl.allocate_shared_memory(gl.int64, [slots, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    more = gl.allocate_shared_memory(gl.int64, [5, 1], barrier)
    query_full, query_empty, bias_full = more.index(0), more.index(1), more.index(2)
    other_full, other_empty = more.index(3), more.index(4)
    for n in gl.static_range(slots):
        # Announced by the copy engine and, for the mask, by the loader.
        mbarrier.init(full.index(n), 2)
    for n in gl.static_range(STAGES):
        mbarrier.init(empty.index(n), 2)
    mbarrier.init(query_full, 1)
    mbarrier.init(query_empty, 2)
    for n in gl.static_range(2, 5):
        mbarrier.init(more.index(n), 1)
    fence_async_shared()

    mask += batch.to(gl.int64) * mask_stride_b
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
        query_smem, k_smem, v_smem, bias_smem, mask_smem, unmasked_smem, out_smem,
        other_smem, other_full, other_empty,
        query_full, query_empty, full, empty, bias_full,
        batch, head, first_q, first_row, rows, gl.to_tensor(num_rows), gl.to_tensor(num_heads),
        gl.to_tensor(num_queries), gl.to_tensor(num_keys), scale,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (differentiate, (gl.to_tensor(0), args, C)),
            (differentiate, (gl.to_tensor(1), args, C)),
            (load_rows, (load_args, C)),
        ],
        [4, 1],
        [REGISTERS, LOADER_REGISTERS],
    )
