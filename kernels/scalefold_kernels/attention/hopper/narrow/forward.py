"""Forward with heads of 8 channels, two by two; see `attention.hopper.forward`.

Rows of one head, 16 bytes, keep TMA busy longer than all else takes. Two heads side by
side are the 16 channels that a product takes: queries of one have zeros in the other's channels; of
values times weights, one half is kept. What a row brings comes once for both.
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

from scalefold_kernels.attention.hopper.forward import (
    refill,
    start_gate,
    store_result,
    wait_for_stores,
    weigh,
    within_range,
)
from scalefold_kernels.attention.hopper.parts import (
    LOG2E,
    copy_bias,
    count,
    lane_sums,
    load_bias,
    load_first_keys,
    load_mask,
    log2,
    place_of_program,
    stacked,
    store_mask,
)
from scalefold_kernels.gluon import mma_layout, new_barriers, thread_barrier, widen

PAIR = gl.constexpr(16)
"""Channels of two heads."""


@gluon.jit
def of_heads(first, second, layout: gl.constexpr):
    """Of two heads' channels, those of the first from one tile and of the second from another."""
    channel = gl.arange(0, PAIR, layout=gl.SliceLayout(0, layout))
    return gl.where((channel < PAIR // 2)[None, :], first, second)


@gluon.jit
def attend_to_block(
    sums, queries, j, place, weighing, memory,
    TURNED: gl.constexpr, BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, EXACT: gl.constexpr,
):  # fmt: skip
    """Both heads' sums with block ``j`` of keys, at a place; one's products under way in turn."""
    _, k_smem, v_smem, bias_smem, mask_smem = memory
    o0, total0, highest0 = sums[0]
    o1, total1, highest1 = sums[1]
    k = k_smem.index(place).reshape([BLOCK_K, PAIR]).permute((1, 0))
    v = v_smem.index(place).reshape([BLOCK_K, PAIR])
    s0 = load_bias(bias_smem.index(j), BLOCK_K, True, TURNED)
    s0 = warpgroup_mma(queries[0], k, s0, is_async=True)
    s1 = load_bias(bias_smem.index(NUM_BLOCKS + j), BLOCK_K, True, TURNED)
    s1 = warpgroup_mma(queries[1], k, s1, is_async=True)
    s0 = warpgroup_mma_wait(1, [s0])
    left0, o0, total0, highest0 = weigh(s0, o0, total0, highest0, j, weighing, mask_smem, EXACT)
    o0 = warpgroup_mma(left0, v, o0, is_async=True)
    s1 = warpgroup_mma_wait(1, [s1])
    left1, o1, total1, highest1 = weigh(s1, o1, total1, highest1, j, weighing, mask_smem, EXACT)
    o1 = warpgroup_mma(left1, v, o1, is_async=True)
    o0, o1 = warpgroup_mma_wait(0, [o0, o1])
    return (o0, total0, highest0), (o1, total1, highest1)


@gluon.jit
def attend(
    turn, loads, stores, memory, barriers, sizes,
    HAS_GATE: gl.constexpr, BIAS_SCALE: gl.constexpr, TURNED: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, KEYS: gl.constexpr, PLACES: gl.constexpr,
    EXACT: gl.constexpr,
):  # fmt: skip
    """Go through the program's rows, for the ``turn``-th time; 0 for queries to be done again."""
    q, q_stride_r, q_stride_n, k_desc, v_desc, gate_desc, mask, mask_stride_r, mask_stride_k = loads
    out_desc, lse, lse_stride = stores
    out_smem, k_smem, v_smem, _, mask_smem = memory
    full, gate_full, bias_full = barriers
    batch, pair, first_q, first_row, rows, num_rows, num_heads, num_queries, num_keys, scale = sizes
    dtype: gl.constexpr = out_smem.dtype
    S: gl.constexpr = mma_layout(BLOCK_K)
    OUT: gl.constexpr = mma_layout(PAIR)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, S)

    load_first_keys(
        k_desc, v_desc, k_smem, v_smem, full, batch, first_row, pair, PAIR, BLOCK_K, PLACES
    )
    # Queries of the next row wait in registers: shared memory is full of biases.
    own = first_q + gl.arange(0, 64, layout=gl.SliceLayout(1, A))
    channel = gl.arange(0, PAIR, layout=gl.SliceLayout(0, A))
    q_at, q_inside = own[:, None] * q_stride_n + channel[None, :], (own < num_queries)[:, None]
    q_next = gl.load(q + first_row.to(gl.int64) * q_stride_r + q_at, mask=q_inside, other=0.0)
    kept = load_mask(mask, mask_stride_r, mask_stride_k, first_row, num_keys, KEYS)
    unmasked = count(kept)
    queries = first_q + gl.arange(0, 64, layout=by_row)
    held = gl.full([64], 1, gl.int32, by_row)
    unit = LOG2E * BIAS_SCALE
    none = gl.full([64, PAIR], 0.0, dtype, A)
    mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        # Rows so far: how often a barrier was waited for in them gives its phase.
        before = turn * rows + i
        more = i + 1 < rows
        all_kept = unmasked == NUM_BLOCKS * BLOCK_K
        if not all_kept:
            store_mask(kept, num_keys, unmasked, mask_smem)
            thread_barrier()
        stretch = gl.where(unmasked > 0, unit, 0.0)
        after = gl.where(more, row + 1, row)
        kept = load_mask(mask, mask_stride_r, mask_stride_k, after, num_keys, KEYS)
        scaled = (widen(q_next) * (scale * (1.0 / BIAS_SCALE))).to(dtype)
        both = of_heads(scaled, none, A), of_heads(none, scaled, A)
        q_next = gl.load(q + after.to(gl.int64) * q_stride_r + q_at, mask=q_inside, other=0.0)
        at = [batch, row, first_q, pair, 0]
        start_gate(gate_desc, at, gate_full, out_smem, HAS_GATE)
        highest = gl.full([64], float("-inf") if EXACT else 0.0, gl.float32, by_row)
        total = lane_sums(gl.full([64, BLOCK_K], 0.0, gl.float32, S))
        o = gl.full([64, PAIR], 0.0, gl.float32, OUT)
        sums = (o, total, highest), (o, total, highest)
        weighing = all_kept, stretch, unit
        for j in range(NUM_BLOCKS):
            # PLACES divides NUM_BLOCKS: a block has the same place in every row.
            place = j % PLACES
            ready = full.index(place)
            mbarrier.wait(ready, (before * (NUM_BLOCKS // PLACES) + j // PLACES) & 1)
            sums = attend_to_block(
                sums, both, j, place, weighing, memory, TURNED, BLOCK_K, NUM_BLOCKS, EXACT
            )
            refill(
                k_desc, v_desc, k_smem, v_smem, ready, batch, row, pair, j, more,
                PAIR, BLOCK_K, NUM_BLOCKS, PLACES,
            )  # fmt: skip
        unmasked = count(kept)
        divisors = ()
        for h in gl.static_range(2):
            total, highest = sums[h][1], sums[h][2]
            divisor = gl.convert_layout(gl.sum(total, 1), by_row)
            held &= within_range(divisor)
            divisors += (gl.convert_layout(divisor, gl.SliceLayout(1, OUT))[:, None],)
            start = ((batch * num_rows + row).to(gl.int64) * num_heads + 2 * pair + h) * lse_stride
            numbers = highest + log2(divisor)
            gl.store(lse + start + queries, numbers, mask=queries < num_queries)
        o = of_heads(sums[0][0], sums[1][0], OUT)
        divisor = of_heads(divisors[0], divisors[1], OUT)
        store_result(o, divisor, out_desc, at, gate_full, before & 1, out_smem, HAS_GATE)
    tma.store_wait(0)
    return held


@gluon.jit
def narrow_forward_kernel(
    q, k_desc, v_desc, gate_desc, bias_desc, out_desc, mask, lse,
    q_stride_b, q_stride_r, q_stride_n,
    mask_stride_b, mask_stride_r, mask_stride_k, lse_stride,
    num_rows, num_heads, num_queries, num_keys, scale,
    HAS_GATE: gl.constexpr, BIAS_SCALE: gl.constexpr, TURNED: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, KEYS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """64 queries of two heads a program. ``KEYS``: their number to the next power of 2."""
    first_q, pair, _, first_row, rows = place_of_program(num_queries, num_heads // 2, num_rows)
    batch = gl.program_id(1)

    dtype: gl.constexpr = k_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    block: gl.constexpr = [PLACES, 1, 1, BLOCK_K, 1, PAIR]
    # The gate is read from where the result is left.
    out_smem = gl.allocate_shared_memory(dtype, [1, 1, 64, 1, PAIR], out_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, block, k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, block, k_desc.layout)
    tiles: gl.constexpr = stacked(2 * NUM_BLOCKS, bias_desc.block_shape)
    bias_smem = gl.allocate_shared_memory(dtype, tiles, bias_desc.layout)
    mask_smem = gl.allocate_shared_memory(dtype, [KEYS // BLOCK_K, BLOCK_K], flat)
    full, others = new_barriers(PLACES, 1), new_barriers(2, 1)
    gate_full, bias_full = others.index(0), others.index(1)
    fence_async_shared()
    mbarrier.expect(bias_full, 2 * NUM_BLOCKS * 64 * BLOCK_K * 2)
    for n in range(NUM_BLOCKS):
        for h in gl.static_range(2):
            tile, head = bias_smem.index(h * NUM_BLOCKS + n), 2 * pair + h
            copy_bias(bias_desc, tile, bias_full, batch, head, first_q, n * BLOCK_K, TURNED)

    mask += batch.to(gl.int64) * mask_stride_b
    q += batch.to(gl.int64) * q_stride_b + pair * PAIR
    loads = (
        q, gl.to_tensor(q_stride_r), gl.to_tensor(q_stride_n), k_desc, v_desc, gate_desc,
        mask, gl.to_tensor(mask_stride_r), gl.to_tensor(mask_stride_k),
    )  # fmt: skip
    stores = out_desc, lse, gl.to_tensor(lse_stride)
    memory = out_smem, k_smem, v_smem, bias_smem, mask_smem
    barriers = full, gate_full, bias_full
    sizes = (
        batch, pair, first_q, first_row, rows,
        gl.to_tensor(num_rows), gl.to_tensor(num_heads),
        gl.to_tensor(num_queries), gl.to_tensor(num_keys), scale,
    )  # fmt: skip
    held = attend(
        0, loads, stores, memory, barriers, sizes,
        HAS_GATE, BIAS_SCALE, TURNED, BLOCK_K, NUM_BLOCKS, KEYS, PLACES, False,
    )  # fmt: skip
    if gl.min(held, 0) == 0:
        wait_for_stores(held)
        attend(
            1, loads, stores, memory, barriers, sizes,
            HAS_GATE, BIAS_SCALE, TURNED, BLOCK_K, NUM_BLOCKS, KEYS, PLACES, True,
        )  # fmt: skip
