"""Forward kernel for Hopper GPUs; see `parts`.

One to four warp groups have 64 queries each and share keys and values, which the loader brings in a
ring, the next row's queries, mask and gate behind a row's first keys. Weights are powers of the
logits as they are: to take a row's maximum away first would cost an instruction a logit, and no
power could be taken before all logits of a block are known. float32 holds the sums as long as
logits are between -69 and 69; a CTA that meets other sums goes through its rows once more with
their maximum, when all groups have ``finished``.
"""

from __future__ import annotations

from collections import namedtuple

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma, mma_wait, reinterpret
from scalefold_kernels.gluon import mma_layout, opaque_zero, widen, zeros
from scalefold_kernels.ops.attention.arguments import Call, Kept, transposed
from scalefold_kernels.ops.attention.hopper import launches, parts
from scalefold_kernels.ops.attention.rest import OF_BFLOAT16, byte_of_rest

LOWEST = gl.constexpr(2.0**-100)
HIGHEST = gl.constexpr(2.0**100)
"""Range of a row's sum of weights in which float32 suffices.

Weights below 2^-126 are flushed to zero: those of 512 keys are together below 2^-17 of the lowest
sum. Above the highest, float32 has room for the sums of values.
"""

Cta = namedtuple(
    "Cta",
    "bias_desc q k v gate_desc mask out_desc rest_desc lse_ptr lse_stride out_smem bias_smem "
    "mask_smem unmasked_smem again_smem rest_smem gate_full bias_full finished row_full "
    "batch head first_q first_row rows num_rows num_heads num_queries scale "
    "HAS_GATE HAS_BIAS BIAS_SCALE TRANSPOSED KEEPS C BLOCK_K NUM_BLOCKS KEYS GROUPS",
)


@gluon.constexpr_function
def worker_warps(GROUPS):
    """Warps of the groups after the first, and of the loader."""
    return [4] * (GROUPS - 1) + [1]


@gluon.constexpr_function
def worker_registers(GROUPS):
    """Registers of a thread of each worker in `worker_warps`.

    The first group gets the rest. Each partition brings ``maxnreg`` registers for a thread, so that
    four groups (maxnreg 96) leave 5 * 96 - 3 * 104 - 40 = 128, and three (128) leave 152.
    """
    group, loader = 104 if GROUPS == 4 else 160, 40
    return [group] * (GROUPS - 1) + [loader]


@gluon.jit
def wait_for_stores(x):
    """Wait until stores are in memory; `tma.store_wait` waits until they left shared memory."""
    wait: gl.constexpr = "cp.async.bulk.wait_group 0; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(wait, "=r,r", [x], gl.int32, False, 1)


@gluon.jit
def softmax_weights(s, o, total, highest, j, scaling, cta, EXACT: gl.constexpr):
    """Weights from the logits ``s`` of block ``j`` of keys, as a left operand; and updated sums.

    The sum of weights and the highest logit then include the block. The sum of values does not: it
    is only rescaled to the new highest logit, if ``EXACT``.
    """
    none_masked, factor, unit = scaling
    OUT: gl.constexpr = o.type.layout
    if none_masked:
        s = s * unit
    else:
        added = cta.mask_smem.index(j).load(gl.SliceLayout(0, s.type.layout))
        s = s * factor + added.to(gl.float32)[None, :]
    if EXACT:
        new_highest = gl.maximum(highest, parts.row_max(s))
        s -= new_highest[:, None]
        shrink = gl.exp2(highest - new_highest)
        total *= gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))[:, None]
        o *= gl.convert_layout(shrink, gl.SliceLayout(1, OUT))[:, None]
        highest = new_highest
    # Rounded, as those of values take them: where one key has all the weight, the result is its
    # value to the last bit.
    p = gl.exp2(s).to(gl.bfloat16)
    total += parts.lane_sums(widen(p))
    left = gl.convert_layout(p, gl.DotOperandLayout(0, OUT, 2))
    return left, o, total, highest


@gluon.jit
def attend_to_block(
    o, total, highest, q, j, before, scaling, cta, w: gl.constexpr, EXACT: gl.constexpr
):
    """Add block ``j`` of keys to the sums of values and weights and to the highest logit."""
    masked = (before & 1) * (cta.mask_smem.shape[0] // 2) + j
    tile = cta.bias_smem.index(w * cta.NUM_BLOCKS + j)
    s = parts.load_bias(tile, cta.BLOCK_K, cta.HAS_BIAS, cta.TRANSPOSED)
    slot = parts.wait_block(cta.k, before, j, cta.NUM_BLOCKS)
    k = cta.k.slots.index(slot).reshape([cta.BLOCK_K, cta.C])
    v = cta.v.slots.index(slot).reshape([cta.BLOCK_K, cta.C])
    s = mma(q, k.permute((1, 0)), s, use_acc=cta.HAS_BIAS, is_async=True)
    s = mma_wait(0, [s])
    left, o, total, highest = softmax_weights(s, o, total, highest, masked, scaling, cta, EXACT)
    o = mma(left, v, o)
    mbarrier.arrive(cta.k.empty.index(slot))
    return o, total, highest


@gluon.jit
def store_result(o, divisor, at, ready, phase, out_smem, rest_smem, cta):
    """Divide and gate the sums of values; start their store, and that of their rounding errors."""
    tile = out_smem.reshape([64, out_smem.shape[4]])
    if cta.HAS_GATE:
        mbarrier.wait(ready, phase)
        gate = tile.load(o.type.layout)
        divisor += divisor * gl.exp2(-parts.LOG2E * widen(gate))
    result = o * parts.reciprocal(divisor)
    rounded = result.to(out_smem.dtype)
    tile.store(rounded)
    if cta.KEEPS:
        rest = byte_of_rest(result, widen(rounded), OF_BFLOAT16)
        rest_smem.reshape([64, out_smem.shape[4]]).store(rest)
    fence_async_shared()
    async_store(cta.out_desc, at, out_smem)
    if cta.KEEPS:
        async_store(cta.rest_desc, at, rest_smem)


@gluon.jit
def leave_mask(row_mask, mask_smem, unmasked_smem, cta):
    """Store how many keys of a row are unmasked and, if not all, what is added to their logits."""
    unmasked = parts.count(row_mask)
    if unmasked < cta.NUM_BLOCKS * cta.BLOCK_K:
        parts.store_mask(row_mask, cta.mask.num_keys, unmasked, mask_smem)
    parts.announce(unmasked, unmasked_smem, cta.row_full)


@gluon.jit
def load_queries(row, cta):
    """Start the copies of a row's queries, all groups'."""
    for w in gl.static_range(cta.GROUPS):
        at = [cta.batch, row, cta.first_q + w * 64, cta.head, 0]
        smem.load(cta.q.desc, at, cta.q.full.index(w), cta.q.slots.index(w))


@gluon.jit
def load_rows(pass_index, cta):
    """Load what `attend_to_rows` reads, ahead of it."""
    rows_smem = reinterpret(cta.mask_smem, gl.bfloat16, [2, cta.KEYS], smem.FLAT)
    load_queries(cta.first_row, cta)
    row_mask = parts.load_mask(cta.mask, cta.first_row, cta.KEYS)
    for i in range(cta.rows):
        before = pass_index * cta.rows + i
        row = cta.first_row + i
        stage = before & 1
        leave_mask(row_mask, rows_smem.index(stage), cta.unmasked_smem.index(stage), cta)
        for j in range(cta.NUM_BLOCKS):
            slot = parts.wait_room(cta.k, before, j, cta.NUM_BLOCKS)
            parts.load_keys(cta.k, cta.v, slot, cta.batch, row, j * cta.BLOCK_K, cta.head)
            if j == cta.k.full.shape[0] - 1:
                more = i + 1 < cta.rows
                after = gl.where(more, row + 1, row)
                row_mask = parts.load_mask(cta.mask, after, cta.KEYS)
                for w in gl.static_range(cta.GROUPS):
                    # All have the queries, and the result of the row before has left.
                    mbarrier.wait(cta.q.empty.index(w), before & 1)
                    at = [cta.batch, row, cta.first_q + w * 64, cta.head, 0]
                    if cta.HAS_GATE:
                        smem.load(cta.gate_desc, at, cta.gate_full.index(w), cta.out_smem.index(w))
                if more:
                    load_queries(row + 1, cta)


@gluon.jit
def load(cta):
    if cta.HAS_BIAS:
        mbarrier.expect(cta.bias_full, cta.GROUPS * cta.NUM_BLOCKS * smem.tile_bytes(cta.bias_desc))
        for w in gl.static_range(cta.GROUPS):
            for n in range(cta.NUM_BLOCKS):
                tile = cta.bias_smem.index(w * cta.NUM_BLOCKS + n)
                query = cta.first_q + w * 64
                parts.copy_bias(
                    cta.bias_desc, tile, cta.bias_full, cta.batch, cta.head, query, n * cta.BLOCK_K,
                    cta.TRANSPOSED,
                )  # fmt: skip
    load_rows(0, cta)
    if any_again(cta):
        load_rows(1, cta)


@gluon.jit
def any_again(cta):
    """Whether a group has met sums out of range, when all have gone through the rows."""
    mbarrier.wait(cta.finished, 0)
    again = 0
    for w in gl.static_range(cta.GROUPS):
        again += parts.announced(cta.again_smem.index(w))
    return again > 0


@gluon.jit
def attend_to_rows(pass_index, cta, w: gl.constexpr, EXACT: gl.constexpr):
    """Compute the CTA's rows; returns 0 for each query whose sums left the range, else 1.

    Pass 0 is the fast one. Pass 1 repeats all rows with their maximum, ``EXACT``.
    """
    out_smem, gate_full = cta.out_smem.index(w), cta.gate_full.index(w)
    LOGITS: gl.constexpr = mma_layout(cta.BLOCK_K)
    OUT: gl.constexpr = mma_layout(cta.C)
    A: gl.constexpr = gl.DotOperandLayout(0, LOGITS, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, LOGITS)

    first_q = cta.first_q + w * 64
    queries = first_q + gl.arange(0, 64, layout=by_row)
    held = gl.full([64], 1, gl.int32, by_row)
    # With a bias, the accumulator starts from it, and so queries are scaled; else logits are.
    unit = parts.LOG2E * cta.BIAS_SCALE if cta.HAS_BIAS else parts.LOG2E * cta.scale
    for i in range(cta.rows):
        row = cta.first_row + i
        # Rows so far: how often a barrier was waited for in them gives its phase.
        before = pass_index * cta.rows + i
        stage = before & 1
        mbarrier.wait(cta.q.full.index(w), stage)
        mbarrier.wait(cta.row_full, stage)
        q = cta.q.slots.index(w).reshape([64, cta.C]).load(A)
        unmasked = parts.announced(cta.unmasked_smem.index(stage))
        # The result of the row before has left the place.
        tma.store_wait(0)
        mbarrier.arrive(cta.q.empty.index(w))
        if cta.HAS_BIAS:
            q = (widen(q) * (cta.scale * (1.0 / cta.BIAS_SCALE))).to(gl.bfloat16)
        none_masked = unmasked == cta.NUM_BLOCKS * cta.BLOCK_K
        factor = gl.where(unmasked > 0, unit, 0.0)
        highest = gl.full([64], float("-inf") if EXACT else 0.0, gl.float32, by_row)
        total = parts.lane_sums(zeros(64, cta.BLOCK_K))
        o = zeros(64, cta.C)
        scaling = none_masked, factor, unit
        for j in range(cta.NUM_BLOCKS):
            o, total, highest = attend_to_block(
                o, total, highest, q, j, before, scaling, cta, w, EXACT
            )
        sums = gl.convert_layout(gl.sum(total, 1), by_row)
        held &= ((sums > LOWEST) & (sums < HIGHEST)).to(gl.int32)
        divisor = gl.convert_layout(sums, gl.SliceLayout(1, OUT))[:, None]
        at = [cta.batch, row, first_q, cta.head, 0]
        rest_smem = cta.rest_smem.index((w if cta.KEEPS else 0) + opaque_zero(before))
        store_result(o, divisor, at, gate_full, stage, out_smem, rest_smem, cta)
        line = (cta.batch * cta.num_rows + row).to(gl.int64) * cta.num_heads + cta.head
        start = line * cta.lse_stride
        inside = queries < cta.num_queries
        gl.store(cta.lse_ptr + start + queries, highest + parts.log2(sums), mask=inside)
    tma.store_wait(0)
    return held


@gluon.jit
def compute(cta, w: gl.constexpr):
    if cta.HAS_BIAS:
        mbarrier.wait(cta.bias_full, 0)
    held = attend_to_rows(0, cta, w, False)
    wait_for_stores(held)
    parts.announce(1 - gl.min(held, 0), cta.again_smem.index(w), cta.finished)
    if any_again(cta):
        attend_to_rows(1, cta, w, True)


@gluon.jit
def run_partition(cta, w: gl.constexpr):
    """Warp group ``w``; the loader is after the last."""
    if w < cta.GROUPS:
        compute(cta, w)
    else:
        load(cta)


@gluon.jit
def run_partitions(cta):
    """One to four warp groups and a loader warp."""
    gl.warp_specialize(
        [(run_partition, (cta, w)) for w in (0, 1, 2, 3, 4)[: cta.GROUPS + 1]],
        worker_warps(cta.GROUPS),
        worker_registers(cta.GROUPS),
    )


@gluon.jit
def attention_forward_hopper_kernel(
    q_desc, k_desc, v_desc, gate_desc, bias_desc, out_desc, rest_desc, mask_ptr, lse_ptr,
    mask_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    HAS_GATE: gl.constexpr, HAS_BIAS: gl.constexpr, BIAS_SCALE: gl.constexpr,
    TRANSPOSED: gl.constexpr, KEEPS: gl.constexpr, C: gl.constexpr, BLOCK_K: gl.constexpr,
    NUM_BLOCKS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """See the module. ``KEYS``: the number of keys, rounded up to a power of 2.

    ``KEEPS``: the result's rounding errors are stored, too.
    """
    place = parts.place_of_cta(num_queries, num_heads, num_rows, 64 * GROUPS)
    first_q, head, _, first_row, rows = place
    batch = gl.program_id(1)

    q = ring.new(q_desc, GROUPS, 1)
    # The gate is read from where the result is stored.
    out_smem = smem.tiles(out_desc, GROUPS)
    k = ring.new(k_desc, STAGES, GROUPS)
    v = ring.along(k, v_desc, STAGES)
    bias_smem = smem.tiles(bias_desc, GROUPS * NUM_BLOCKS if HAS_BIAS else 1)
    # Masks of the row that is computed and of the next.
    mask_smem = smem.numbers(gl.bfloat16, 2 * (KEYS // BLOCK_K), BLOCK_K)
    unmasked_smem = smem.numbers(gl.int32, 2, 1)
    again_smem = smem.numbers(gl.int32, GROUPS, 1)
    rest_smem = smem.tiles(rest_desc, GROUPS if KEEPS else 1)
    gate_full = smem.barriers(GROUPS, 1) if HAS_GATE else q.full
    barriers = smem.barriers(2, 1)
    finished = smem.barriers(1, GROUPS).index(0)
    fence_async_shared()

    mask = parts.mask_of(mask_ptr, batch, mask_strides, num_keys)
    run_partitions(Cta(
        bias_desc, q, k, v, gate_desc, mask, out_desc, rest_desc, lse_ptr, gl.to_tensor(lse_stride),
        out_smem, bias_smem, mask_smem, unmasked_smem, again_smem, rest_smem,
        gate_full, barriers.index(0), finished, barriers.index(1),
        batch, head, first_q, first_row, rows, gl.to_tensor(num_rows), gl.to_tensor(num_heads),
        gl.to_tensor(num_queries), scale,
        HAS_GATE, HAS_BIAS, BIAS_SCALE, TRANSPOSED, KEEPS, C, BLOCK_K, NUM_BLOCKS, KEYS, GROUPS,
    ))  # fmt: skip


def launch(call: Call, kept: Kept) -> None:
    """Fill what is kept of the result."""
    q, k, v, gate, mask, bias, *_ = call
    out, lse, rest = kept
    bias = None if bias is None else launches.bias_rows(bias)
    config = constants(call)
    block, blocks = config["BLOCK_K"], triton.cdiv(call.num_queries, 64 * config["GROUPS"])
    # All blocks of a row and head share their keys, and so are under way at a time.
    ctas, _ = launches.dealt(call, blocks, ctas_an_sm(call, config), blocks)
    q_desc = launches.rows(q, 64)
    attention_forward_hopper_kernel[(ctas, call.batch)](
        q_desc, launches.rows(k, block), launches.rows(v, block),
        q_desc if gate is None else launches.rows(gate, 64), launches.bias(bias, q, 64, block),
        launches.rows(out, 64), launches.rows(out if rest is None else rest, 64), mask, lse,
        call.mask_strides, lse.stride(2), *call.scalars,
        HAS_GATE=gate is not None, HAS_BIAS=bias is not None, BIAS_SCALE=call.bias_scale,
        TRANSPOSED=transposed(bias), KEEPS=rest is not None, **config,
    )  # fmt: skip


def constants(call: Call) -> dict[str, int]:
    config = call.config("attention_forward_hopper", "sm_90")
    block = config["BLOCK_K"]
    config["KEYS"] = launches.key_slots(call, block)
    return launches.in_blocks(call, config, triton.cdiv(call.num_keys, block))


def ctas_an_sm(call: Call, config: dict[str, int]) -> int:
    """How many CTAs fit: shared memory has bias, keys, values, queries, results and two masks."""
    block, channels, queries = config["BLOCK_K"], config["C"], 64 * config["GROUPS"]
    bias = 2 * 64 * block if call.bias is None else 2 * queries * block * config["NUM_BLOCKS"]
    rows = 2 * channels * (2 * config["STAGES"] * block + 2 * queries)
    rest = 0 if call.bias is None else channels * queries
    needed = bias + rows + rest + 4 * config["KEYS"]
    return launches.fitting(needed, config["GROUPS"] + 1, config["maxnreg"])
