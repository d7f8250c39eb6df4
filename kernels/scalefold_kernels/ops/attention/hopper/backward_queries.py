"""Gradients of queries and of the bias on Hopper GPUs, for any number of keys; see `parts`.

The only warp group loads for itself: a block of keys, as soon as the one in its slot is used up.
The sum over rows of the logits' gradient, which is the bias's, stays in shared memory. So that
several CTAs find room on an SM, keys are dealt out to passes over the rows; the gradients of
queries wait in memory from one pass to the next. The first keys may be another kernel's,
`backward_queries_bias`, which leaves them there.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, mma, mma_wait, thread_barrier
from scalefold_kernels.gluon import mma_layout, zeros
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.ops.attention.arguments import Call, new_sums, transposed
from scalefold_kernels.ops.attention.hopper import launches, parts
from scalefold_kernels.ops.attention.hopper.backward_keys import Shared
from scalefold_kernels.tma import padded


@gluon.jit
def load_statistics(
    lse_ptr, delta_ptr, batch, row, head, num_rows, num_heads, stride, queries, inside
):
    """Load lse and delta of 64 queries of a row; beyond the last query all weights become 0."""
    start = ((batch * num_rows + row).to(gl.int64) * num_heads + head) * stride
    lse_tile = gl.load(lse_ptr + start + queries, mask=inside, other=float("inf"))
    return lse_tile, gl.load(delta_ptr + start + queries, mask=inside, other=0.0)


@gluon.jit
def from_line(x, layout: gl.constexpr):
    """Inverse of `in_line`."""
    return parts.by_position(gl.reshape(x, [x.shape[0] // (64 * 8), 4, 8, 4, 2, 2]), layout)


@gluon.constexpr_function
def chunks_in_order(C):
    """A tile (64, C) as products leave it, but a thread's registers go through e, k, then h.

    A product's go through e, h, then k: see the drawing in `docs/kernels.md`.
    """
    chunks = [[0, 8 << n] for n in range(C.bit_length() - 4)]
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    warps = [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout([[0, 1], *chunks, [8, 0]], lanes, warps, [], [64, C])


@gluon.jit
def transpose_quads(x):
    """Transpose four pairs of bfloat16 with four threads, (..., 4, 4 threads, 2), by shuffles."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 x;
        .reg .pred odd, upper;
        mov.u32 x, %laneid;
        and.b32 x, x, 1;
        setp.ne.u32 odd, x, 0;
        mov.u32 x, %laneid;
        and.b32 x, x, 2;
        setp.ne.u32 upper, x, 0;
        selp.b32 x, $4, $5, odd;
        shfl.sync.bfly.b32 x, x, 1, 31, 0xffffffff;
        selp.b32 $0, x, $4, odd;
        selp.b32 $1, $5, x, odd;
        selp.b32 x, $6, $7, odd;
        shfl.sync.bfly.b32 x, x, 1, 31, 0xffffffff;
        selp.b32 $2, x, $6, odd;
        selp.b32 $3, $7, x, odd;
        selp.b32 x, $0, $2, upper;
        shfl.sync.bfly.b32 x, x, 2, 31, 0xffffffff;
        selp.b32 $0, x, $0, upper;
        selp.b32 $2, $2, x, upper;
        selp.b32 x, $1, $3, upper;
        shfl.sync.bfly.b32 x, x, 2, 31, 0xffffffff;
        selp.b32 $1, x, $1, upper;
        selp.b32 $3, $3, x, upper;
        }""",
        "=&r,=&r,=&r,=&r,r,r,r,r", [x], gl.bfloat16, False, 8,
    )  # fmt: skip


@gluon.jit
def by_vector(x):
    """A tile (64, C) that a product gave, in bfloat16, with 16 bytes of a row in each thread.

    By shuffles: `gl.convert_layout` would take shared memory. A product leaves 4 bytes of a row in
    a thread, and storing these takes four times as many requests to the caches.
    """
    C: gl.constexpr = x.shape[1]
    x = gl.convert_layout(x, chunks_in_order(C), assert_trivial=True)
    # Warps, lines, halves and chunks, threads of a line, pairs.
    tile = gl.permute(gl.reshape(x, [4, 2, 8, C // 8, 4, 2]), (0, 2, 1, 3, 4, 5))
    tile = transpose_quads(gl.reshape(tile, [4, 8, C // 16, 4, 4, 2]))
    tile = gl.reshape(gl.permute(tile, (0, 1, 2, 4, 3, 5)), [4, 8, 2, C // 8, 4, 2])
    return gl.reshape(gl.permute(tile, (0, 2, 1, 3, 4, 5)), [64, C])


@gluon.jit
def start_pass(
    pass_index, bias_desc, bias_full, memory, batch, head, first_q,
    SUM_BIAS: gl.constexpr, TRANSPOSED: gl.constexpr, FIRST_K: gl.constexpr,
    BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr,
):  # fmt: skip
    """Load the bias of the pass's keys, and zero the sums of its gradient."""
    _, _, bias_smem, sums_smem, _ = memory
    # All are done with the bias of the pass before.
    thread_barrier()
    mbarrier.expect(bias_full, NUM_BLOCKS * smem.tile_bytes(bias_desc))
    for b in range(NUM_BLOCKS):
        key = FIRST_K + (pass_index * NUM_BLOCKS + b) * BLOCK_K
        tile = bias_smem.index(b)
        parts.copy_bias(bias_desc, tile, bias_full, batch, head, first_q, key, TRANSPOSED)
    if SUM_BIAS:
        for b in range(NUM_BLOCKS):
            zero = parts.by_thread(zeros(64, BLOCK_K))
            sums_smem.index(b).store(zero)
    mbarrier.wait(bias_full, pass_index & 1)


@gluon.jit
def differentiate_block(
    sums_q, i, j, masked, row, memory, HAS_BIAS: gl.constexpr, SUM_BIAS: gl.constexpr,
    TRANSPOSED: gl.constexpr, C: gl.constexpr, BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr,
):  # fmt: skip
    """Add a block of keys to the gradient of a row's queries; returns their slot, too.

    ``i``: number of the row, all passes counted; ``j``, ``masked``: of the block in the pass, and
    among all.
    """
    q, grad_out, lse_tile, delta_tile, none_masked, factor, unit = row
    k_ring, v_ring, bias_smem, sums_smem, mask_smem = memory
    dtype: gl.constexpr = k_ring.desc.dtype
    LOGITS: gl.constexpr = mma_layout(BLOCK_K)
    A_P: gl.constexpr = gl.DotOperandLayout(0, mma_layout(C), 2)
    s = parts.load_bias(bias_smem.index(j), BLOCK_K, HAS_BIAS, TRANSPOSED)
    slot = parts.wait_block(k_ring, i, j, NUM_BLOCKS)
    k = k_ring.slots.index(slot).reshape([BLOCK_K, C])
    v = v_ring.slots.index(slot).reshape([BLOCK_K, C])
    s = mma(q, k.permute((1, 0)), s, use_acc=HAS_BIAS, is_async=True)
    grad_p = mma(grad_out, v.permute((1, 0)), zeros(64, BLOCK_K), use_acc=False, is_async=True)
    if SUM_BIAS:
        # Under the products.
        sums = sums_smem.index(j)
        zero = parts.by_thread(zeros(64, BLOCK_K))
        earlier = sums.load(zero.type.layout)
    s, grad_p = mma_wait(0, [s, grad_p])
    if not none_masked:
        added = mask_smem.index(masked).load(gl.SliceLayout(0, LOGITS)).to(gl.float32)
        s = s * factor + added[None, :]
    p = gl.exp2(s * unit - lse_tile[:, None])
    grad_s = p * (grad_p - delta_tile[:, None])
    left = gl.convert_layout(grad_s.to(dtype), A_P)
    if SUM_BIAS:
        sums.store(earlier + parts.by_thread(grad_s))
    return mma(left, k, sums_q), slot


@gluon.jit
def write_sums(
    partial_ptr, sums_smem, pass_index, queries, inside, num_queries, num_keys,
    TRANSPOSED: gl.constexpr, BIAS_SCALE: gl.constexpr, BLOCK_K: gl.constexpr,
    NUM_BLOCKS: gl.constexpr,
):  # fmt: skip
    """Store a pass's sums of the bias's gradient; ``inside``: which queries exist."""
    LOGITS: gl.constexpr = mma_layout(BLOCK_K)
    for b in range(NUM_BLOCKS):
        first = (pass_index * NUM_BLOCKS + b) * BLOCK_K
        keys = first + gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, LOGITS))
        at = parts.sum_places(queries, keys, num_queries, num_keys, TRANSPOSED)
        both = inside[:, None] & (keys[None, :] < num_keys)
        zero = parts.by_thread(zeros(64, BLOCK_K))
        summed = parts.by_position(sums_smem.index(b).load(zero.type.layout), LOGITS)
        gl.store(partial_ptr + at, summed * BIAS_SCALE, mask=both)


@gluon.jit
def attention_backward_queries_hopper_kernel(
    q_desc, k_desc, v_desc, grad_desc, bias_desc, grad_q_ptr, lse_ptr, delta_ptr, mask_ptr,
    partial_ptr, waiting_ptr, grad_stride_b, grad_stride_r, grad_stride_q, grad_stride_h,
    mask_strides, statistics_stride, num_rows, num_heads, num_queries, num_keys, scale,
    HAS_BIAS: gl.constexpr, SUM_BIAS: gl.constexpr, BIAS_SCALE: gl.constexpr,
    TRANSPOSED: gl.constexpr, INT64: gl.constexpr, C: gl.constexpr, CHANNELS: gl.constexpr,
    FIRST_K: gl.constexpr, BLOCK_K: gl.constexpr, NUM_BLOCKS: gl.constexpr, PASSES: gl.constexpr,
    KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """See the module. Keys from ``FIRST_K`` on; ``NUM_BLOCKS``: of a pass.

    ``partial`` (groups of rows, B, H, Q, K; K, Q for a ``TRANSPOSED`` bias) has these keys, in
    float32; `waiting_at` describes ``waiting``. With a bias queries are as forward multiplied
    them; without, logits are scaled here.
    """
    first_q, head, group, first_row, rows = parts.place_of_cta(num_queries, num_heads, num_rows)
    batch = gl.program_id(1)

    # Queries and their gradient; a ring of keys and values; bias, its gradient's sums; mask.
    query_smem = smem.tiles(q_desc, 2)
    k = ring.new(k_desc, STAGES, 0)
    v = ring.along(k, v_desc, STAGES)
    bias_smem = smem.tiles(bias_desc, NUM_BLOCKS if HAS_BIAS else 1)
    sum_tiles: gl.constexpr = [NUM_BLOCKS, BLOCK_K // 8 if SUM_BIAS else 1, 4, 8, 4, 2, 2]
    sums_smem = gl.allocate_shared_memory(gl.float32, sum_tiles, parts.BY_THREAD)
    mask_smem = smem.numbers(gl.bfloat16, KEYS // BLOCK_K, BLOCK_K)
    memory = k, v, bias_smem, sums_smem, mask_smem
    barriers = smem.barriers(2, 1)
    query_full, bias_full = barriers.index(0), barriers.index(1)
    fence_async_shared()

    LOGITS: gl.constexpr = mma_layout(BLOCK_K)
    OUT: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, LOGITS, 2)

    mbarrier.expect(query_full, smem.tile_bytes(q_desc, grad_desc))
    first = [batch, first_row, first_q, head, 0]
    async_load(q_desc, first, query_full, query_smem.index(0))
    async_load(grad_desc, first, query_full, query_smem.index(1))
    for n in gl.static_range(STAGES):
        parts.load_keys(k, v, n, batch, first_row, FIRST_K + n * BLOCK_K, head)

    mask = parts.mask_of(mask_ptr, batch, mask_strides, num_keys)
    row_mask = parts.load_mask(mask, first_row, KEYS)
    unmasked = parts.count(row_mask)
    queries = first_q + gl.arange(0, 64, layout=gl.SliceLayout(1, LOGITS))
    inside = queries < num_queries
    VECTORS: gl.constexpr = by_vector(gl.full([64, C], 0.0, q_desc.dtype, OUT)).type.layout
    places = gl.arange(0, 64, layout=gl.SliceLayout(1, VECTORS))
    channels = gl.arange(0, C, layout=gl.SliceLayout(0, VECTORS))
    lines = places[:, None].to(gl.int64) if INT64 else places[:, None]
    offsets = lines * grad_stride_q + channels[None, :]
    start = batch.to(gl.int64) * grad_stride_b + head * grad_stride_h
    grad_q_ptr += start + first_q.to(gl.int64) * grad_stride_q
    present = ((first_q + places) < num_queries)[:, None] & (channels < CHANNELS)[None, :]
    unit = parts.LOG2E * BIAS_SCALE if HAS_BIAS else parts.LOG2E * scale
    number = (group * gl.num_programs(1) + batch).to(gl.int64) * num_heads + head
    partial_ptr += number * num_queries * (num_keys - FIRST_K)
    sizes = gl.to_tensor(num_rows), gl.to_tensor(num_heads), gl.to_tensor(num_queries)
    statistics = num_rows, num_heads, statistics_stride, queries, inside
    next_lse, next_delta = load_statistics(lse_ptr, delta_ptr, batch, first_row, head, *statistics)
    for pass_index in range(PASSES):
        if HAS_BIAS:
            start_pass(
                pass_index, bias_desc, bias_full, memory, batch, head, first_q,
                SUM_BIAS, TRANSPOSED, FIRST_K, BLOCK_K, NUM_BLOCKS,
            )  # fmt: skip
        for i in range(rows):
            row = first_row + i
            last = i + 1 == rows
            more = (not last) | (pass_index < PASSES - 1)
            after = gl.where(last, first_row, row + 1)
            none_masked = unmasked == FIRST_K + PASSES * NUM_BLOCKS * BLOCK_K
            if not none_masked:
                parts.store_mask(row_mask, num_keys, unmasked, mask_smem)
            factor = (unmasked > 0).to(gl.float32)
            row_mask = parts.load_mask(mask, after, KEYS)
            # The next row's are under way while this one is computed: else its products wait.
            lse_tile, delta_tile = next_lse, next_delta
            following = load_statistics(lse_ptr, delta_ptr, batch, after, head, *statistics)
            next_lse, next_delta = following
            own = parts.waiting_at(waiting_ptr, batch, row, head, first_q, sizes, OUT)
            if FIRST_K > 0:
                sums_q = from_line(gl.load(own), OUT)
            elif PASSES == 1:
                sums_q = zeros(64, C)
            else:
                earlier = gl.full(own.shape, 0, gl.int32, own.type.layout) + pass_index > 0
                sums_q = from_line(gl.load(own, mask=earlier, other=0.0), OUT)
            mbarrier.wait(query_full, (pass_index * rows + i) & 1)
            q = query_smem.index(0).reshape([64, C]).load(A)
            grad_out = query_smem.index(1).reshape([64, C]).load(A)
            # All have the queries, whose slot may be filled, and see the mask.
            thread_barrier()
            mbarrier.expect(query_full, smem.tile_bytes(q_desc, grad_desc), pred=more)
            at = [batch, after, first_q, head, 0]
            async_load(q_desc, at, query_full, query_smem.index(0), pred=more)
            async_load(grad_desc, at, query_full, query_smem.index(1), pred=more)
            own_row = q, grad_out, lse_tile, delta_tile, none_masked, factor, unit
            for j in range(NUM_BLOCKS):
                sums_q, slot = differentiate_block(
                    sums_q, pass_index * rows + i, j,
                    FIRST_K // BLOCK_K + pass_index * NUM_BLOCKS + j, own_row, memory,
                    HAS_BIAS, SUM_BIAS, TRANSPOSED, C, BLOCK_K, NUM_BLOCKS,
                )  # fmt: skip
                # All are done with the block.
                thread_barrier()
                beyond = j + STAGES >= NUM_BLOCKS
                next_block = gl.where(beyond, j + STAGES - NUM_BLOCKS, j + STAGES)
                next_pass = gl.where(beyond & last, pass_index + 1, pass_index)
                next_key = FIRST_K + (next_pass * NUM_BLOCKS + next_block) * BLOCK_K
                parts.load_keys(
                    k, v, slot, batch, gl.where(beyond, after, row), next_key, head,
                    more | (not beyond),
                )  # fmt: skip
            unmasked = parts.count(row_mask)
            if pass_index == PASSES - 1:
                result = by_vector((sums_q * scale).to(q_desc.dtype))
                # Strides allow vectors: TMA requires the same of the other gradients.
                vectors = gl.multiple_of(
                    grad_q_ptr + row.to(gl.int64) * grad_stride_r + offsets, [1, 16]
                )
                gl.store(vectors, result, mask=present)
            else:
                gl.store(own, parts.in_line(sums_q))
        if SUM_BIAS:
            write_sums(
                partial_ptr, sums_smem, pass_index, queries, inside, num_queries,
                num_keys - FIRST_K, TRANSPOSED, BIAS_SCALE, BLOCK_K, NUM_BLOCKS,
            )  # fmt: skip


def launch(
    call: Call,
    bias: Tensor | None,
    lse: Tensor,
    shared: Shared,
    grad_q: Tensor,
    sum_bias: bool,
    first_key: int = 0,
    waiting: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Fill ``grad_q``; return sums of the bias's gradient if ``sum_bias``.

    Keys before ``first_key`` are left out; ``waiting`` has the gradients of queries from those.
    """
    _, k, v, _, mask, *_ = call
    config = constants(call, first_key)
    block, passes = config["BLOCK_K"], config["PASSES"]
    blocks = triton.cdiv(call.num_queries, 64)
    # CTAs sum up the bias's gradient: all heads have equally many.
    ctas, groups = launches.dealt(call, blocks, ctas_an_sm(call, config), blocks * call.num_heads)
    # Offsets of 64 bits, which the others were measured with, spill there.
    short = first_key > 0 and (passes > 1 or transposed(bias))
    sums = new_sums(bias[..., first_key:], groups) if bias is not None and sum_bias else None
    if passes > 1 and first_key == 0:
        waiting = new_waiting(call)
    attention_backward_queries_hopper_kernel[(ctas, call.batch)](
        launches.rows(shared.q, 64), launches.rows(k, block), launches.rows(v, block),
        launches.rows(shared.grad_o, 64), launches.bias(bias, shared.q, 64, block),
        grad_q, lse, shared.delta, mask, lse if sums is None else sums,
        lse if waiting is None else waiting, *grad_q.stride()[:4], call.mask_strides,
        lse.stride(2), *call.scalars,
        HAS_BIAS=bias is not None, SUM_BIAS=sums is not None, BIAS_SCALE=call.bias_scale,
        TRANSPOSED=transposed(bias), INT64=not short or needs_int64(grad_q),
        CHANNELS=call.channels, **config,
    )  # fmt: skip
    return () if sums is None else (sums,)


def new_waiting(call: Call) -> Tensor:
    """New memory for gradients of queries from some of the keys; `parts.waiting_at`."""
    blocks = triton.cdiv(call.num_queries, 64)
    size = call.batch, call.num_rows, call.num_heads, blocks, 64, padded(call.channels)
    return torch.empty(size, device=call.q.device, dtype=torch.float32)


def constants(call: Call, first_key: int = 0) -> dict[str, int]:
    config = call.config("attention_backward_queries_hopper", "sm_90")
    own, block, pass_keys = call.num_keys - first_key, config["BLOCK_K"], config.pop("PASS_K")
    passes = 1 if call.bias is None else triton.cdiv(own, pass_keys)
    config |= {"PASSES": passes, "FIRST_K": first_key, "KEYS": launches.key_slots(call, block)}
    return launches.in_blocks(call, config, triton.cdiv(own, block * passes))


def ctas_an_sm(call: Call, config: dict[str, int]) -> int:
    """How many CTAs fit: shared memory has bias and its gradient, keys, values, queries, mask."""
    block, channels = config["BLOCK_K"], config["C"]
    keys = config["NUM_BLOCKS"] * block
    bias = 2 * 64 * block + 4 * 8 * keys if call.bias is None else (2 + 4) * 64 * keys
    rows = 2 * channels * (2 * config["STAGES"] * block + 2 * 64)
    return launches.fitting(bias + rows + 2 * config["KEYS"], 1, config["maxnreg"])
