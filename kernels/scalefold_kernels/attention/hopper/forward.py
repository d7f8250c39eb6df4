"""Forward kernel for Hopper GPUs; see `parts`."""

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
    lane_sums,
    load_keys,
    load_mask,
    log2,
    reciprocal,
    row_max,
    store_mask,
)
from scalefold_kernels.hopper import mma_layout, widen


@gluon.jit
def forward_kernel(
    q_desc, k_desc, v_desc, gate_desc, bias_desc, out_desc, mask, lse,
    mask_stride_b, mask_stride_r, mask_stride_k, lse_stride,
    rows_per_program, num_rows, num_heads, num_queries, num_keys, scale,
    HAS_GATE: gl.constexpr, HAS_BIAS: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, KEYS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """64 queries a program. ``KEYS``: their number to the next power of 2."""
    num_q_blocks = gl.cdiv(num_queries, 64)
    first_q = gl.program_id(0) % num_q_blocks * 64
    head = gl.program_id(0) // num_q_blocks % num_heads
    first_row = gl.program_id(0) // (num_q_blocks * num_heads) * rows_per_program
    rows = gl.minimum(num_rows - first_row, rows_per_program)
    batch = gl.program_id(1)

    dtype: gl.constexpr = q_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    block: gl.constexpr = [PLACES, 1, 1, BLOCK_K, 1, C]
    q_smem = gl.allocate_shared_memory(dtype, [1, 1, 64, 1, C], q_desc.layout)
    # The gate is read from where the result is left.
    out_smem = gl.allocate_shared_memory(dtype, [1, 1, 64, 1, C], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, block, k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, block, k_desc.layout)
    tiles: gl.constexpr = NUM_BLOCKS if HAS_BIAS else 1
    bias_smem = gl.allocate_shared_memory(dtype, [tiles, 1, 1, 64, BLOCK_K], bias_desc.layout)
    mask_smem = gl.allocate_shared_memory(gl.float32, [KEYS // BLOCK_K, BLOCK_K], flat)
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    q_full, gate_full, bias_full = others.index(0), others.index(1), others.index(2)
    for n in gl.static_range(PLACES):
        mbarrier.init(full.index(n), 1)
    for n in gl.static_range(3):
        mbarrier.init(others.index(n), 1)
    fence_async_shared()

    S: gl.constexpr = mma_layout(BLOCK_K)
    OUT: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    A_P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, S)
    by_column: gl.constexpr = gl.SliceLayout(0, S)

    mbarrier.expect(q_full, 64 * C * 2)
    tma.async_copy_global_to_shared(q_desc, [batch, first_row, first_q, head, 0], q_full, q_smem)
    if HAS_BIAS:
        mbarrier.expect(bias_full, NUM_BLOCKS * 64 * BLOCK_K * 2)
        for n in range(NUM_BLOCKS):
            corner = [batch, head, first_q, n * BLOCK_K]
            tma.async_copy_global_to_shared(bias_desc, corner, bias_full, bias_smem.index(n))
    for n in gl.static_range(PLACES):
        load_keys(
            k_desc, v_desc, k_smem.index(n), v_smem.index(n), full.index(n),
            batch, first_row, n * BLOCK_K, head, True, C, BLOCK_K,
        )  # fmt: skip
    mask += batch.to(gl.int64) * mask_stride_b
    kept = load_mask(mask, mask_stride_r, mask_stride_k, first_row, num_keys, KEYS)
    unmasked = count(kept)
    queries = first_q + gl.arange(0, 64, layout=by_row)
    if HAS_BIAS:
        mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        more = i + 1 < rows
        all_kept = unmasked == NUM_BLOCKS * BLOCK_K
        if not all_kept:
            store_mask(kept, num_keys, unmasked, mask_smem)
        factor = (unmasked > 0).to(gl.float32)
        after = gl.where(more, row + 1, row)
        kept = load_mask(mask, mask_stride_r, mask_stride_k, after, num_keys, KEYS)
        mbarrier.wait(q_full, i & 1)
        q = q_smem.reshape([64, C]).load(A)
        q = (widen(q) * scale).to(dtype)
        gl.thread_barrier()
        mbarrier.expect(q_full, 64 * C * 2, pred=more)
        at = [batch, row + 1, first_q, head, 0]
        tma.async_copy_global_to_shared(q_desc, at, q_full, q_smem, pred=more)
        tma.store_wait(0)
        if HAS_GATE:
            mbarrier.expect(gate_full, 64 * C * 2)
            at = [batch, row, first_q, head, 0]
            tma.async_copy_global_to_shared(gate_desc, at, gate_full, out_smem)
        highest = gl.full([64], float("-inf"), gl.float32, by_row)
        total = lane_sums(gl.full([64, BLOCK_K], 0.0, gl.float32, S))
        o = gl.full([64, C], 0.0, gl.float32, OUT)
        for j in range(NUM_BLOCKS):
            # PLACES divides NUM_BLOCKS: a block has the same place in every row.
            place = j % PLACES
            ready = full.index(place)
            mbarrier.wait(ready, (i * (NUM_BLOCKS // PLACES) + j // PLACES) & 1)
            if HAS_BIAS:
                s = widen(bias_smem.index(j).reshape([64, BLOCK_K]).load(S))
            else:
                s = gl.full([64, BLOCK_K], 0.0, gl.float32, S)
            k = k_smem.index(place).reshape([BLOCK_K, C])
            v = v_smem.index(place).reshape([BLOCK_K, C])
            s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=HAS_BIAS, is_async=True)
            s = warpgroup_mma_wait(0, [s])
            if not all_kept:
                added = mask_smem.index(j).load(by_column)
                s = s * factor + added[None, :]
            new_highest = gl.maximum(highest, row_max(s) * LOG2E)
            p = gl.exp2(s * LOG2E - new_highest[:, None])
            shrink = gl.exp2(highest - new_highest)
            total *= gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))[:, None]
            total += lane_sums(p)
            o *= gl.convert_layout(shrink, gl.SliceLayout(1, OUT))[:, None]
            o = warpgroup_mma(gl.convert_layout(p.to(dtype), A_P), v, o)
            highest = new_highest
            gl.thread_barrier()
            beyond = j + PLACES >= NUM_BLOCKS
            next_block = gl.where(beyond, j + PLACES - NUM_BLOCKS, j + PLACES)
            load_keys(
                k_desc, v_desc, k_smem.index(place), v_smem.index(place), ready, batch,
                gl.where(beyond, row + 1, row), next_block * BLOCK_K, head, more | (not beyond),
                C, BLOCK_K,
            )  # fmt: skip
        unmasked = count(kept)
        sums = gl.convert_layout(gl.sum(total, 1), by_row)
        divisor = gl.convert_layout(sums, gl.SliceLayout(1, OUT))[:, None]
        if HAS_GATE:
            mbarrier.wait(gate_full, i & 1)
            gate = out_smem.reshape([64, C]).load(OUT)
            divisor += divisor * gl.exp2(-LOG2E * widen(gate))
        result = o * reciprocal(divisor)
        out_smem.reshape([64, C]).store(result.to(dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [batch, row, first_q, head, 0], out_smem)
        start = ((batch * num_rows + row).to(gl.int64) * num_heads + head) * lse_stride
        gl.store(lse + start + queries, highest + log2(sums), mask=queries < num_queries)
    tma.store_wait(0)
