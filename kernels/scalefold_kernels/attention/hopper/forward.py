"""Forward kernel for Hopper GPUs; see `parts`.

Weights are powers of the logits as they are: to take a row's maximum away first would cost an
instruction a logit, and no power could be taken before all logits of a block are known. float32
holds the sums as long as logits are between -69 and 69; a program that meets a sum which says
otherwise goes through its rows once more, with their maximum.
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
    copy_bias,
    count,
    lane_sums,
    load_bias,
    load_first_keys,
    load_keys,
    load_mask,
    log2,
    place_of_program,
    reciprocal,
    row_max,
    stacked,
    store_mask,
)
from scalefold_kernels.gluon import mma_layout, new_barriers, thread_barrier, widen

LOWEST = gl.constexpr(2.0**-100)
HIGHEST = gl.constexpr(2.0**100)
"""Of a row's sum. Weights below 2^-126 are lost: 2^-18 of the lowest. Sums of values have room."""


@gluon.jit
def wait_for_stores(x):
    """Until results are in memory (`tma.store_wait`: until they have left shared memory)."""
    wait: gl.constexpr = "cp.async.bulk.wait_group 0; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(wait, "=r,r", [x], gl.int32, False, 1)


@gluon.jit
def weigh(s, o, total, highest, j, weighing, mask_smem, EXACT: gl.constexpr):
    """Weights from the logits ``s`` of block ``j`` of keys, as left operand; and the sums.

    Sums of weights and the highest logit now include the block. Those of values do not: they are
    at most brought to the new highest logit (``EXACT``).
    """
    all_kept, stretch, unit = weighing
    OUT: gl.constexpr = o.type.layout
    if all_kept:
        s = s * unit
    else:
        added = mask_smem.index(j).load(gl.SliceLayout(0, s.type.layout))
        s = s * stretch + added.to(gl.float32)[None, :]
    if EXACT:
        new_highest = gl.maximum(highest, row_max(s))
        s -= new_highest[:, None]
        shrink = gl.exp2(highest - new_highest)
        total *= gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))[:, None]
        o *= gl.convert_layout(shrink, gl.SliceLayout(1, OUT))[:, None]
        highest = new_highest
    p = gl.exp2(s)
    total += lane_sums(p)
    left = gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, OUT, 2))
    return left, o, total, highest


@gluon.jit
def attend_to_block(
    o, total, highest, q, j, place, weighing, memory,
    HAS_BIAS: gl.constexpr, TURNED: gl.constexpr, C: gl.constexpr, BLOCK_K: gl.constexpr,
    EXACT: gl.constexpr,
):  # fmt: skip
    """Sums of values and weights, and the highest logit, with block ``j`` of keys, at a place."""
    _, _, k_smem, v_smem, bias_smem, mask_smem = memory
    s = load_bias(bias_smem.index(j), BLOCK_K, HAS_BIAS, TURNED)
    k = k_smem.index(place).reshape([BLOCK_K, C])
    v = v_smem.index(place).reshape([BLOCK_K, C])
    s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=HAS_BIAS, is_async=True)
    s = warpgroup_mma_wait(0, [s])
    left, o, total, highest = weigh(s, o, total, highest, j, weighing, mask_smem, EXACT)
    return warpgroup_mma(left, v, o), total, highest


@gluon.jit
def within_range(sums):
    """1 for rows whose sum of weights float32 held, 0 for those to be done again."""
    return ((sums > LOWEST) & (sums < HIGHEST)).to(gl.int32)


@gluon.jit
def refill(
    k_desc, v_desc, k_smem, v_smem, ready, batch, row, head, j, more,
    C: gl.constexpr, BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Start the copies of the block that comes to the place of block ``j``."""
    # All are done with the block: its place may be filled.
    thread_barrier()
    beyond = j + PLACES >= NUM_BLOCKS
    block = gl.where(beyond, j + PLACES - NUM_BLOCKS, j + PLACES)
    load_keys(
        k_desc, v_desc, k_smem.index(j % PLACES), v_smem.index(j % PLACES), ready, batch,
        gl.where(beyond, row + 1, row), block * BLOCK_K, head, more | (not beyond), C, BLOCK_K,
    )  # fmt: skip


@gluon.jit
def start_gate(gate_desc, at, ready, out_smem, HAS_GATE: gl.constexpr):
    """Start the copy of the gate to where the result will be left."""
    # The result of the row before has left the place.
    tma.store_wait(0)
    if HAS_GATE:
        mbarrier.expect(ready, 64 * out_smem.shape[4] * 2)
        tma.async_copy_global_to_shared(gate_desc, at, ready, out_smem)


@gluon.jit
def store_result(o, divisor, out_desc, at, ready, phase, out_smem, HAS_GATE: gl.constexpr):
    """Start the store of sums of values, divided and gated."""
    tile = out_smem.reshape([64, out_smem.shape[4]])
    if HAS_GATE:
        mbarrier.wait(ready, phase)
        gate = tile.load(o.type.layout)
        divisor += divisor * gl.exp2(-LOG2E * widen(gate))
    tile.store((o * reciprocal(divisor)).to(out_smem.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, at, out_smem)


@gluon.jit
def attend(
    turn, loads, stores, memory, barriers, sizes,
    HAS_GATE: gl.constexpr, HAS_BIAS: gl.constexpr, BIAS_SCALE: gl.constexpr,
    TURNED: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, KEYS: gl.constexpr, PLACES: gl.constexpr,
    EXACT: gl.constexpr,
):  # fmt: skip
    """Go through the program's rows, for the ``turn``-th time; 0 for queries to be done again."""
    q_desc, k_desc, v_desc, gate_desc, mask, mask_stride_r, mask_stride_k = loads
    out_desc, lse, lse_stride = stores
    q_smem, out_smem, k_smem, v_smem, _, mask_smem = memory
    full, q_full, gate_full, bias_full = barriers
    batch, head, first_q, first_row, rows, num_rows, num_heads, num_queries, num_keys, scale = sizes
    dtype: gl.constexpr = q_smem.dtype
    S: gl.constexpr = mma_layout(BLOCK_K)
    OUT: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, S)

    mbarrier.expect(q_full, 64 * C * 2)
    tma.async_copy_global_to_shared(q_desc, [batch, first_row, first_q, head, 0], q_full, q_smem)
    load_first_keys(
        k_desc, v_desc, k_smem, v_smem, full, batch, first_row, head, C, BLOCK_K, PLACES
    )
    kept = load_mask(mask, mask_stride_r, mask_stride_k, first_row, num_keys, KEYS)
    unmasked = count(kept)
    queries = first_q + gl.arange(0, 64, layout=by_row)
    held = gl.full([64], 1, gl.int32, by_row)
    # With a bias, the accumulator starts from it, and so queries are scaled; else logits are.
    unit = LOG2E * BIAS_SCALE if HAS_BIAS else LOG2E * scale
    if HAS_BIAS:
        mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        # Rows so far: how often a barrier was waited for in them gives its phase.
        before = turn * rows + i
        more = i + 1 < rows
        all_kept = unmasked == NUM_BLOCKS * BLOCK_K
        if not all_kept:
            store_mask(kept, num_keys, unmasked, mask_smem)
        stretch = gl.where(unmasked > 0, unit, 0.0)
        after = gl.where(more, row + 1, row)
        kept = load_mask(mask, mask_stride_r, mask_stride_k, after, num_keys, KEYS)
        mbarrier.wait(q_full, before & 1)
        q = q_smem.reshape([64, C]).load(A)
        if HAS_BIAS:
            q = (widen(q) * (scale * (1.0 / BIAS_SCALE))).to(dtype)
        # All have the queries, whose place may be filled, and see the mask.
        thread_barrier()
        mbarrier.expect(q_full, 64 * C * 2, pred=more)
        at = [batch, row + 1, first_q, head, 0]
        tma.async_copy_global_to_shared(q_desc, at, q_full, q_smem, pred=more)
        at = [batch, row, first_q, head, 0]
        start_gate(gate_desc, at, gate_full, out_smem, HAS_GATE)
        highest = gl.full([64], float("-inf") if EXACT else 0.0, gl.float32, by_row)
        total = lane_sums(gl.full([64, BLOCK_K], 0.0, gl.float32, S))
        o = gl.full([64, C], 0.0, gl.float32, OUT)
        weighing = all_kept, stretch, unit
        for j in range(NUM_BLOCKS):
            # PLACES divides NUM_BLOCKS: a block has the same place in every row.
            place = j % PLACES
            ready = full.index(place)
            mbarrier.wait(ready, (before * (NUM_BLOCKS // PLACES) + j // PLACES) & 1)
            o, total, highest = attend_to_block(
                o, total, highest, q, j, place, weighing, memory,
                HAS_BIAS, TURNED, C, BLOCK_K, EXACT,
            )  # fmt: skip
            refill(
                k_desc, v_desc, k_smem, v_smem, ready, batch, row, head, j, more,
                C, BLOCK_K, NUM_BLOCKS, PLACES,
            )  # fmt: skip
        unmasked = count(kept)
        sums = gl.convert_layout(gl.sum(total, 1), by_row)
        held &= within_range(sums)
        divisor = gl.convert_layout(sums, gl.SliceLayout(1, OUT))[:, None]
        store_result(o, divisor, out_desc, at, gate_full, before & 1, out_smem, HAS_GATE)
        start = ((batch * num_rows + row).to(gl.int64) * num_heads + head) * lse_stride
        gl.store(lse + start + queries, highest + log2(sums), mask=queries < num_queries)
    tma.store_wait(0)
    return held


@gluon.jit
def forward_kernel(
    q_desc, k_desc, v_desc, gate_desc, bias_desc, out_desc, mask, lse,
    mask_stride_b, mask_stride_r, mask_stride_k, lse_stride,
    num_rows, num_heads, num_queries, num_keys, scale,
    HAS_GATE: gl.constexpr, HAS_BIAS: gl.constexpr, BIAS_SCALE: gl.constexpr,
    TURNED: gl.constexpr, C: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, KEYS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """64 queries a program. ``KEYS``: their number to the next power of 2."""
    first_q, head, _, first_row, rows = place_of_program(num_queries, num_heads, num_rows)
    batch = gl.program_id(1)

    dtype: gl.constexpr = q_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    block: gl.constexpr = [PLACES, 1, 1, BLOCK_K, 1, C]
    q_smem = gl.allocate_shared_memory(dtype, [1, 1, 64, 1, C], q_desc.layout)
    # The gate is read from where the result is left.
    out_smem = gl.allocate_shared_memory(dtype, [1, 1, 64, 1, C], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, block, k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, block, k_desc.layout)
    tiles: gl.constexpr = stacked(NUM_BLOCKS if HAS_BIAS else 1, bias_desc.block_shape)
    bias_smem = gl.allocate_shared_memory(dtype, tiles, bias_desc.layout)
    mask_smem = gl.allocate_shared_memory(gl.float32, [KEYS // BLOCK_K, BLOCK_K], flat)
    full, others = new_barriers(PLACES, 1), new_barriers(3, 1)
    q_full, gate_full, bias_full = others.index(0), others.index(1), others.index(2)
    fence_async_shared()
    if HAS_BIAS:
        mbarrier.expect(bias_full, NUM_BLOCKS * 64 * BLOCK_K * 2)
        for n in range(NUM_BLOCKS):
            tile = bias_smem.index(n)
            copy_bias(bias_desc, tile, bias_full, batch, head, first_q, n * BLOCK_K, TURNED)

    mask += batch.to(gl.int64) * mask_stride_b
    loads = (
        q_desc, k_desc, v_desc, gate_desc,
        mask, gl.to_tensor(mask_stride_r), gl.to_tensor(mask_stride_k),
    )  # fmt: skip
    stores = out_desc, lse, gl.to_tensor(lse_stride)
    memory = q_smem, out_smem, k_smem, v_smem, bias_smem, mask_smem
    barriers = full, q_full, gate_full, bias_full
    sizes = (
        batch, head, first_q, first_row, rows,
        gl.to_tensor(num_rows), gl.to_tensor(num_heads),
        gl.to_tensor(num_queries), gl.to_tensor(num_keys), scale,
    )  # fmt: skip
    held = attend(
        0, loads, stores, memory, barriers, sizes,
        HAS_GATE, HAS_BIAS, BIAS_SCALE, TURNED, C, BLOCK_K, NUM_BLOCKS, KEYS, PLACES, False,
    )  # fmt: skip
    if gl.min(held, 0) == 0:
        wait_for_stores(held)
        attend(
            1, loads, stores, memory, barriers, sizes,
            HAS_GATE, HAS_BIAS, BIAS_SCALE, TURNED, C, BLOCK_K, NUM_BLOCKS, KEYS, PLACES, True,
        )  # fmt: skip
