"""All gradients of a row on Hopper GPUs, where there is no bias and a row has up to 128 positions.

One or two warp groups of 64 keys share a row and head: all of it is in shared memory, so that
weights are computed once and the gate takes no kernel of its own. They load for themselves: while
one row is computed, the next is copied. Logits are transposed (keys x queries), as in
`backward_keys`; their gradient goes through shared memory to be a left operand, too.
"""

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma, mma_wait, reinterpret, thread_barrier
from scalefold_kernels.gluon import product_int64, unsigned, widen
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.ops.attention.arguments import Call, Gradients, Kept
from scalefold_kernels.ops.attention.hopper import launches
from scalefold_kernels.ops.attention.hopper import why_not as why_not_hopper
from scalefold_kernels.ops.attention.hopper.parts import LOG2E, Mask, count, load_mask, undo_gate
from scalefold_kernels.tma import padded

STAGES = gl.constexpr(2)
"""Rows in shared memory at a time."""

MAX_LENGTH = 128
"""Most queries, and most keys, for which shared memory holds all that a row's gradients need."""

CTAS_AN_SM = 2
"""CTAs that an SM holds at a time, each with two rows in shared memory."""


@gluon.constexpr_function
def shared_mma_layout(columns, warps_m, warps_n):
    """`mma_layout` for a tile that several warp groups share."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[warps_m, warps_n], instr_shape=[16, columns, 16]
    )


@gluon.jit
def place_of(item, num_rows, num_heads):
    """Sample, row and head of an item; consecutive items are heads of a row, adjacent in memory."""
    item, rows, heads = unsigned(item), unsigned(num_rows), unsigned(num_heads)
    row = item // heads
    return (row // rows).to(gl.int32), (row % rows).to(gl.int32), (item % heads).to(gl.int32)


@gluon.jit
def numbers_at(tile, place, C: gl.constexpr):
    """Room for one float32 a query within a tile (64, C) of bfloat16."""
    return reinterpret(tile, gl.float32, [C // 2, 64], smem.FLAT).index(place)


@gluon.jit
def load_row(rings, stage, item, num_rows, num_heads, wanted, HAS_GATE: gl.constexpr):
    """Start the copies of everything that a row's gradients are computed from."""
    q, k, v, gate, out, grad = rings
    batch, row, head = place_of(item, num_rows, num_heads)
    size: gl.constexpr = smem.tile_bytes(k.desc, v.desc, grad.desc, out.desc, q.desc)
    gate_size: gl.constexpr = smem.tile_bytes(gate.desc) if HAS_GATE else 0
    mbarrier.expect(q.full.index(stage), size + gate_size, pred=wanted)
    at = [batch, row, 0, head, 0]
    ring.copy(k, stage, at, wanted)
    ring.copy(v, stage, at, wanted)
    ring.copy(grad, stage, at, wanted)
    ring.copy(out, stage, at, wanted)
    if HAS_GATE:
        ring.copy(gate, stage, at, wanted)
    ring.copy(q, stage, at, wanted)


@gluon.jit
def load_row_mask(mask_ptr, strides, batch, row, own, num_keys, KEYS: gl.constexpr):
    """Load a row's mask twice: all of it in every warp, and each thread's part of a tile's keys."""
    stride_b, stride_r, stride_k = strides
    start = mask_ptr + product_int64(batch, stride_b) + product_int64(row, stride_r)
    row_mask = load_mask(Mask(start, 0, stride_k, num_keys), row, KEYS)  # the row begins there
    return row_mask, gl.load(start + own * stride_k, mask=own < num_keys, other=0.0)


@gluon.jit
def undo_gates(
    stage, lse_tiles, memory, gate_smem,
    HAS_GATE: gl.constexpr, C: gl.constexpr, NUM_Q: gl.constexpr, VECTORS: gl.constexpr,
):  # fmt: skip
    """`undo_gate` of all blocks of a row's queries; statistics take the result's place."""
    _, grad_smem, out_smem, _ = memory
    for b in gl.static_range(NUM_Q):
        gate_slot = stage * NUM_Q + b
        gate_tile = gate_smem.index(gate_slot)
        out_tile = out_smem.index(gate_slot)
        deltas = undo_gate(
            grad_smem.index(gate_slot).reshape([64, C]),
            widen(out_tile.reshape([64, C]).load(VECTORS)),
            gate_tile.reshape([64, C]), HAS_GATE, VECTORS,
        )  # fmt: skip
        # Nothing else needs the result.
        numbers_at(out_tile, 0, C).store(deltas)
        numbers_at(out_tile, 1, C).store(lse_tiles[b])


@gluon.jit
def differentiate_block(
    grad_k, grad_v, slot, k, v, factor, own_unmasked, none_masked, scale, memory,
    C: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """Add a block of queries to the gradients of keys and values; store its gradient in its place.

    Shared memory has the block's ungated gradient and statistics, from `undo_gates`.
    """
    q_smem, grad_smem, out_smem, grad_s_smem = memory
    WARPS: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = q_smem.dtype
    LOGITS: gl.constexpr = shared_mma_layout(64, WARPS, 1)
    # Queries are 64: warp groups share the channels.
    OUT_Q: gl.constexpr = shared_mma_layout(C * 4 // WARPS, 4, WARPS // 4)
    A_P: gl.constexpr = gl.DotOperandLayout(0, shared_mma_layout(C, WARPS, 1), 2)
    by_column: gl.constexpr = gl.SliceLayout(0, LOGITS)
    q = q_smem.index(slot).reshape([64, C])
    grad = grad_smem.index(slot).reshape([64, C])
    s = gl.full([KEYS, 64], 0.0, gl.float32, LOGITS)
    s = mma(k, q.permute((1, 0)), s, use_acc=False, is_async=True)
    grad_p = gl.full([KEYS, 64], 0.0, gl.float32, LOGITS)
    grad_p = mma(v, grad.permute((1, 0)), grad_p, use_acc=False, is_async=True)
    s, grad_p = mma_wait(0, [s, grad_p])
    lse_tile = numbers_at(out_smem.index(slot), 1, C).load(by_column)
    p = gl.exp2(s * factor - lse_tile[None, :])
    if not none_masked:
        p = gl.where(own_unmasked[:, None], p, 0.0)
    delta = numbers_at(out_smem.index(slot), 0, C).load(by_column)
    grad_s = (p * (grad_p - delta[None, :])).to(dtype)
    grad_s_smem.store(grad_s)
    p = gl.convert_layout(p.to(dtype), A_P)
    grad_v = mma(p, grad, grad_v, is_async=True)
    left = gl.convert_layout(grad_s, A_P)
    grad_k = mma(left, q, grad_k, is_async=True)
    fence_async_shared()
    thread_barrier()
    grad_q = gl.full([64, C], 0.0, gl.float32, OUT_Q)
    grad_q = mma(grad_s_smem.permute((1, 0)), k, grad_q, use_acc=False, is_async=True)
    grad_v, grad_k, grad_q = mma_wait(0, [grad_v, grad_k, grad_q])
    # All are done with these queries, and with the gradient of the logits.
    thread_barrier()
    q.store((grad_q * scale).to(dtype))
    return grad_k, grad_v


@gluon.jit
def attention_backward_row_hopper_kernel(
    q_desc, k_desc, v_desc, gate_desc, out_desc, grad_desc, lse_ptr, grad_q_desc, grad_k_desc,
    grad_v_desc, grad_gate_desc, mask_ptr, mask_strides, lse_stride, num_items, num_rows, num_heads,
    num_queries, num_keys, scale, HAS_GATE: gl.constexpr, C: gl.constexpr, NUM_Q: gl.constexpr,
):  # fmt: skip
    """See the module. Queries beyond the last read as zeros and so add nothing."""
    WARPS: gl.constexpr = gl.num_warps()
    KEYS: gl.constexpr = 16 * WARPS
    dtype: gl.constexpr = q_desc.dtype
    q = ring.new(q_desc, STAGES, 0)
    grad, out = ring.along(q, grad_desc, STAGES), ring.along(q, out_desc, STAGES)
    gate = q
    if HAS_GATE:
        gate = ring.along(q, gate_desc, STAGES)
    # Copies are of all queries of a row, products of blocks of 64.
    blocks: gl.constexpr = [STAGES * NUM_Q, 1, 1, 64, 1, C]
    q_smem = reinterpret(q.slots, dtype, blocks, q_desc.layout)
    grad_smem = reinterpret(grad.slots, dtype, blocks, q_desc.layout)
    out_smem = reinterpret(out.slots, dtype, blocks, q_desc.layout)
    gate_smem = reinterpret(gate.slots, dtype, blocks, q_desc.layout)
    k_ring, v_ring = ring.along(q, k_desc, STAGES), ring.along(q, v_desc, STAGES)
    transposed: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    grad_s_smem = gl.allocate_shared_memory(dtype, [KEYS, 64], transposed)
    fence_async_shared()
    thread_barrier()

    OUT: gl.constexpr = shared_mma_layout(C, WARPS, 1)
    by_key: gl.constexpr = gl.SliceLayout(1, shared_mma_layout(64, WARPS, 1))
    LANES: gl.constexpr = C // 8
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    queries = gl.arange(0, 64, layout=gl.SliceLayout(1, VECTORS))

    rings = q, k_ring, v_ring, gate, out, grad
    step = gl.num_programs(0)
    first = gl.program_id(0)
    for n in gl.static_range(STAGES):
        item = first + n * step
        load_row(rings, n, item, num_rows, num_heads, item < num_items, HAS_GATE)
    own = gl.arange(0, KEYS, layout=by_key)
    batch, row, head = place_of(first, num_rows, num_heads)
    row_mask, own_mask = load_row_mask(mask_ptr, mask_strides, batch, row, own, num_keys, KEYS)
    memory = q_smem, grad_smem, out_smem, grad_s_smem
    num_rounds = gl.cdiv(num_items - first, step)
    for round_index in range(num_rounds):
        item = first + round_index * step
        batch, row, head = place_of(item, num_rows, num_heads)
        unmasked = count(row_mask)
        none_masked = unmasked == KEYS
        # If all keys are masked, all logits are 0, and all keys count as unmasked.
        factor = gl.where(unmasked == 0, 0.0, scale * LOG2E)
        own_unmasked = ((own_mask != 0) | (unmasked == 0)) & (own < num_keys)
        lse_row = lse_ptr + product_int64(item, lse_stride)
        lse_tiles = ()
        for b in gl.static_range(NUM_Q):
            at_q = b * 64 + queries
            part = gl.load(lse_row + at_q, mask=at_q < num_queries, other=0.0)
            lse_tiles = lse_tiles + (part,)
        stage = ring.wait_full(q, round_index)
        k = k_ring.slots.index(stage).reshape([KEYS, C])
        v = v_ring.slots.index(stage).reshape([KEYS, C])
        undo_gates(stage, lse_tiles, memory, gate_smem, HAS_GATE, C, NUM_Q, VECTORS)
        fence_async_shared()
        thread_barrier()
        grad_k = gl.full([KEYS, C], 0.0, gl.float32, OUT)
        grad_v = gl.full([KEYS, C], 0.0, gl.float32, OUT)
        for b in range(NUM_Q):
            grad_k, grad_v = differentiate_block(
                grad_k, grad_v, stage * NUM_Q + b, k, v, factor, own_unmasked, none_masked, scale,
                memory, C, KEYS,
            )  # fmt: skip
        # This store and the next mask's load come no earlier, to save registers.
        if HAS_GATE:
            at = [batch, row, 0, head, 0]
            async_store(grad_gate_desc, at, gate.slots.index(stage))
        after = gl.minimum(item + step, num_items - 1)
        next_batch, next_row, _ = place_of(after, num_rows, num_heads)
        place = next_batch, next_row
        row_mask, own_mask = load_row_mask(mask_ptr, mask_strides, *place, own, num_keys, KEYS)
        k.store((grad_k * scale).to(dtype))
        v.store(grad_v.to(dtype))
        fence_async_shared()
        thread_barrier()
        at = [batch, row, 0, head, 0]
        async_store(grad_v_desc, at, v_ring.slots.index(stage))
        async_store(grad_k_desc, at, k_ring.slots.index(stage))
        async_store(grad_q_desc, at, q.slots.index(stage))
        tma.store_wait(0)
        more = round_index + STAGES < num_rounds
        load_row(rings, stage, item + STAGES * step, num_rows, num_heads, more, HAS_GATE)


def why_not(function: str, call: Call) -> str | None:
    if call.bias is not None:
        return "takes no bias"
    longest = max(call.num_queries, call.num_keys)
    if longest > MAX_LENGTH:
        return f"takes {MAX_LENGTH} queries and keys at most, found {longest}"
    return why_not_hopper(function, call)


def backward(
    call: Call, kept: Kept, grad_out: Tensor, gradients: Gradients, sum_bias: bool
) -> tuple[Tensor, ...]:
    """Fill ``gradients`` by one kernel; without a bias there are no sums to return."""
    q, k, v, gate, mask, *_ = call
    num_q, num_warps = triton.cdiv(call.num_queries, 64), 4 * triton.cdiv(call.num_keys, 64)
    items = call.batch * call.num_rows * call.num_heads
    # Each CTA goes through rows and heads at equal distances.
    ctas = min(items, CTAS_AN_SM * num_sms(q.device))
    # All positions of a row in one box.
    block, keys = 64 * num_q, 16 * num_warps
    q_desc = launches.rows(q, block)
    attention_backward_row_hopper_kernel[(ctas,)](
        q_desc, launches.rows(k, keys), launches.rows(v, keys),
        q_desc if gate is None else launches.rows(gate, block), launches.rows(kept.out, block),
        launches.rows(launches.gradient_rows(grad_out), block), kept.lse,
        launches.rows(gradients.q, block), launches.rows(gradients.k, keys),
        launches.rows(gradients.v, keys),
        q_desc if gradients.gate is None else launches.rows(gradients.gate, block), mask,
        call.mask_strides, kept.lse.stride(2), items, *call.scalars,
        HAS_GATE=gate is not None, C=padded(call.channels), NUM_Q=num_q, num_warps=num_warps,
        maxnreg=128,
    )  # fmt: skip
    return ()
