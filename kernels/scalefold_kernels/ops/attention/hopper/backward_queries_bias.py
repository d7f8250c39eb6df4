"""Gradients of queries, gate and bias on Hopper GPUs, from the first 256 keys; see `parts`.

Two warp groups share a row's keys, 128 each; the loader brings rows some ahead. While a row's
products are under way, both take the gate off the next row's gradient, half of the queries each
(``open`` when both have). Group 0 adds the gradients of queries of both (``other_smem``). The sum
over rows of the logits' gradient, which is the bias's, stays in registers. Where there are more
keys, the gradients of queries wait for `backward_queries`, which adds theirs.
"""

from __future__ import annotations

from collections import namedtuple

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma, mma_wait, reinterpret
from scalefold_kernels.gluon import mma_layout, opaque_zero, two_groups, widen, zeros
from scalefold_kernels.ops.attention.arguments import (
    Call,
    Gradients,
    Kept,
    new_rest,
    new_sums,
    transposed,
)
from scalefold_kernels.ops.attention.hopper import launches, parts
from scalefold_kernels.ops.attention.hopper.backward_keys import Shared
from scalefold_kernels.ops.attention.rest import OF_BFLOAT16, with_rest
from scalefold_kernels.tma import padded

BLOCK_K = gl.constexpr(128)
KEYS = 2 * BLOCK_K.value
"""How many of the first keys this kernel takes."""

STAGES = gl.constexpr(2)
"""Rows whose keys and values are in shared memory."""

AHEAD = gl.constexpr(3)
"""Rows whose queries are in shared memory."""

NOWHERE = gl.constexpr(2**30)
"""A row beyond any tensor's: read as zeros, and not written."""

GROUP_REGISTERS = gl.constexpr(240)
"""Registers of a warp group's thread."""

Cta = namedtuple(
    "Cta",
    "q grad out rest gate lse delta_smem k v bias_desc bias_smem mask mask_smem "
    "unmasked_smem grad_q_desc result_smem other_smem other_full other_empty open bias_full "
    "grad_gate_desc grad_o_desc scaled_q_desc delta_ptr delta_stride_r partial_ptr waiting_ptr "
    "scale batch head first_q first_row rows num_rows num_heads num_queries "
    "HAS_GATE BIAS_SCALE SCALE_Q TRANSPOSED C MORE_KEYS",
)


@gluon.jit
def load_queries(i, cta):
    """Start the copies of the ``i``-th row's queries and what belongs to them.

    After the last row comes one of zeros, which goes through `undo_gate_of_row` like the others.
    """
    row = gl.where(i < cta.rows, cta.first_row + i, NOWHERE)
    rows: gl.constexpr = smem.tile_bytes(cta.grad.desc, cta.out.desc, cta.rest.desc, cta.q.desc)
    gate: gl.constexpr = smem.tile_bytes(cta.gate.desc) if cta.HAS_GATE else 0
    bytes: gl.constexpr = rows + gate + smem.tile_bytes(cta.lse.desc)
    slot = ring.wait_empty(cta.q, i, bytes)
    at = [cta.batch, row, cta.first_q, cta.head, 0]
    ring.copy(cta.grad, slot, at)
    ring.copy(cta.out, slot, at)
    ring.copy(cta.rest, slot, at)
    if cta.HAS_GATE:
        ring.copy(cta.gate, slot, at)
    ring.copy(cta.q, slot, at)
    at = [cta.batch, row, cta.head, cta.first_q]
    ring.copy(cta.lse, slot, at)


@gluon.jit
def load(cta):
    mbarrier.expect(cta.bias_full, 2 * smem.tile_bytes(cta.bias_desc))
    for w in gl.static_range(2):
        tile = cta.bias_smem.index(w)
        parts.copy_bias(
            cta.bias_desc, tile, cta.bias_full, cta.batch, cta.head, cta.first_q, w * BLOCK_K,
            cta.TRANSPOSED,
        )  # fmt: skip
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    # With MORE_KEYS the next row's queries are loaded before this row's mask, which takes the
    # loader long enough to make the groups wait. Otherwise loading them first costs 1 to 2 %.
    EARLY: gl.constexpr = 1 if cta.MORE_KEYS else 0
    if cta.MORE_KEYS:
        load_queries(0, cta)
    for i in range(cta.rows):
        row = cta.first_row + i
        load_queries(i + EARLY, cta)
        row_mask = parts.load_mask(cta.mask, row, 2 * BLOCK_K)
        stage = i % STAGES
        mbarrier.wait(cta.k.empty.index(stage), ring.phase(cta.k, i, 0) ^ 1)
        for w in gl.static_range(2):
            slot = 2 * stage + w
            parts.load_keys(cta.k, cta.v, slot, cta.batch, row, w * BLOCK_K, cta.head)
        unmasked = parts.count(row_mask)
        if cta.MORE_KEYS:
            unmasked = parts.count_unmasked(cta.mask, row)
            # Load it again rather than keep it in registers.
            row_mask = parts.load_mask(cta.mask, row, 2 * BLOCK_K)
        if unmasked < (cta.mask.num_keys if cta.MORE_KEYS else 2 * BLOCK_K):
            rows_smem = reinterpret(cta.mask_smem, gl.bfloat16, [STAGES, 2 * BLOCK_K], smem.FLAT)
            parts.store_mask(row_mask, cta.mask.num_keys, unmasked, rows_smem.index(stage))
        cta.unmasked_smem.index(stage).store(gl.full([1], 0, gl.int32, one) + unmasked)
        for w in gl.static_range(2):
            mbarrier.arrive(cta.k.full.index(2 * stage + w))
    if not cta.MORE_KEYS:
        load_queries(cta.rows, cta)


@gluon.jit
def half_of(queries, half):
    """Half of the queries in a slot of a `Ring`, as a tile for TMA and as a matrix."""
    C: gl.constexpr = queries.slots.shape[5]
    halves: gl.constexpr = [2 * AHEAD, 1, 1, 32, 1, C]
    layout: gl.constexpr = queries.slots.layout
    tile = reinterpret(queries.slots, queries.desc.dtype, halves, layout).index(half)
    return tile, tile.reshape([32, C])


@gluon.jit
def undo_gate_of_row(i, cta, w: gl.constexpr):
    """Overwrite a row's gate and gradient by the gradients of gate and ungated result.

    With ``SCALE_Q`` queries are scaled, too. Warp group ``w`` has half of them; beyond the last row
    nothing is written to memory.
    """
    VECTORS: gl.constexpr = gl.BlockedLayout([1, cta.C // 4], [8, 4], [4, 1], [1, 0])
    row = gl.where(i < cta.rows, cta.first_row + i, NOWHERE)
    slot = ring.wait_full(cta.q, i)
    half = 2 * slot + w
    grad_half, grad = half_of(cta.grad, half)
    gate_half, gate = grad_half, grad
    if cta.HAS_GATE:
        gate_half, gate = half_of(cta.gate, half)
    _, out = half_of(cta.out, half)
    _, rest = half_of(cta.rest, half)
    out = with_rest(widen(out.load(VECTORS)), rest.load(VECTORS), OF_BFLOAT16)
    delta_half = parts.undo_gate(grad, out, gate, cta.HAS_GATE, VECTORS)
    q_half, q = half_of(cta.q, half)
    if cta.SCALE_Q:
        q.store((widen(q.load(VECTORS)) * (cta.scale * (1.0 / cta.BIAS_SCALE))).to(q.dtype))
    same = half + opaque_zero(i)
    deltas = reinterpret(cta.delta_smem, gl.float32, [2 * AHEAD, 32], smem.FLAT)
    deltas.index(same).store(delta_half)
    fence_async_shared()
    mbarrier.arrive(cta.open.index(slot))
    at = [cta.batch, row, cta.first_q + w * 32, cta.head, 0]
    if cta.SCALE_Q:
        async_store(cta.scaled_q_desc, at, q_half)
    if cta.HAS_GATE:
        async_store(cta.grad_o_desc, at, grad_half)
        async_store(cta.grad_gate_desc, at, gate_half)
    first_q = gl.where(i < cta.rows, cta.first_q, NOWHERE)
    queries = first_q + w * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, VECTORS))
    start = cta.delta_ptr + row.to(gl.int64) * cta.delta_stride_r
    gl.store(start + queries, delta_half, mask=queries < cta.num_queries)


@gluon.jit
def compute(w: gl.constexpr, cta):
    """Warp group ``w``. The first adds the gradients of queries of both."""
    LOGITS: gl.constexpr = mma_layout(BLOCK_K)
    OUT: gl.constexpr = mma_layout(cta.C)
    A: gl.constexpr = gl.DotOperandLayout(0, LOGITS, 2)
    A_P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, LOGITS)
    by_column: gl.constexpr = gl.SliceLayout(0, LOGITS)
    # Copies from shared memory that `undo_gate_of_row` starts.
    copies: gl.constexpr = (2 if cta.HAS_GATE else 0) + (1 if cta.SCALE_Q else 0)
    sums = zeros(64, BLOCK_K)
    mbarrier.wait(cta.bias_full, 0)
    undo_gate_of_row(0, cta, w)
    for i in range(cta.rows):
        stage = i % STAGES
        q_slot = i % AHEAD
        same = q_slot + opaque_zero(i)
        mbarrier.wait(cta.open.index(q_slot), ring.phase(cta.q, i))
        q = cta.q.slots.index(same).reshape([64, cta.C]).load(A)
        grad_out = cta.grad.slots.index(q_slot).reshape([64, cta.C])
        slot = ring.wait_full(cta.k, i, w)
        k = cta.k.slots.index(slot).reshape([BLOCK_K, cta.C])
        v = cta.v.slots.index(slot).reshape([BLOCK_K, cta.C])
        s = parts.load_bias(cta.bias_smem.index(w), BLOCK_K, True, cta.TRANSPOSED)
        s = mma(q, k.permute((1, 0)), s, is_async=True)
        grad_p = mma(grad_out, v.permute((1, 0)), zeros(64, BLOCK_K), use_acc=False, is_async=True)
        undo_gate_of_row(i + 1, cta, w)
        lse = cta.lse.slots.index(same).reshape([64]).load(by_row)
        delta = cta.delta_smem.index(same).load(by_row)
        unmasked = parts.announced(cta.unmasked_smem.index(stage))
        s, grad_p = mma_wait(0, [s, grad_p])
        # All copies from shared memory but those of the next row, which may use the slot after.
        tma.store_wait(copies)
        mbarrier.arrive(cta.q.empty.index(q_slot))
        if unmasked < (cta.mask.num_keys if cta.MORE_KEYS else 2 * BLOCK_K):
            added = cta.mask_smem.index(slot).load(by_column).to(gl.float32)
            s = s * (unmasked > 0).to(gl.float32) + added[None, :]
        p = gl.exp2(s * (parts.LOG2E * cta.BIAS_SCALE) - lse[:, None])
        grad_s = p * (grad_p - delta[:, None])
        sums += grad_s
        grad_s = gl.convert_layout(grad_s.to(q.dtype), A_P)
        grad_q = mma(grad_s, k, zeros(64, cta.C), use_acc=False)
        mbarrier.arrive(cta.k.empty.index(stage))
        if w > 0:
            # The first group has added the row before.
            mbarrier.wait(cta.other_empty, (i & 1) ^ 1)
            cta.other_smem.store(parts.by_thread(grad_q))
            mbarrier.arrive(cta.other_full)
        else:
            mbarrier.wait(cta.other_full, i & 1)
            other = cta.other_smem.load(parts.by_thread(grad_q).type.layout)
            grad_q += parts.by_position(other, OUT)
            mbarrier.arrive(cta.other_empty)
            if cta.MORE_KEYS:
                place = cta.batch, cta.first_row + i, cta.head, cta.first_q
                sizes = cta.num_rows, cta.num_heads, cta.num_queries
                at = parts.waiting_at(cta.waiting_ptr, *place, sizes, OUT)
                gl.store(at, parts.in_line(grad_q))
            else:
                # The store of the row before has been waited for above.
                cta.result_smem.reshape([64, cta.C]).store((grad_q * cta.scale).to(q.dtype))
                fence_async_shared()
                at = [cta.batch, cta.first_row + i, cta.first_q, cta.head, 0]
                async_store(cta.grad_q_desc, at, cta.result_smem)
    queries = cta.first_q + gl.arange(0, 64, layout=by_row)
    inside = queries < cta.num_queries
    keys = w * BLOCK_K + gl.arange(0, BLOCK_K, layout=by_column)
    num_keys = 2 * BLOCK_K if cta.MORE_KEYS else cta.mask.num_keys
    at = parts.sum_places(queries, keys, cta.num_queries, num_keys, cta.TRANSPOSED)
    inside = inside[:, None] & (keys[None, :] < num_keys)
    gl.store(cta.partial_ptr + at, sums * cta.BIAS_SCALE, mask=inside)
    tma.store_wait(0)


@gluon.jit
def attention_backward_queries_bias_hopper_kernel(
    q_desc, k_desc, v_desc, gate_desc, out_desc, rest_desc, grad_desc, lse_desc, bias_desc,
    grad_q_desc, grad_gate_desc, grad_o_desc, scaled_q_desc, delta_ptr, mask_ptr, partial_ptr,
    waiting_ptr, mask_strides, statistics_stride, num_rows, num_heads, num_queries, num_keys, scale,
    HAS_GATE: gl.constexpr, BIAS_SCALE: gl.constexpr, SCALE_Q: gl.constexpr,
    TRANSPOSED: gl.constexpr, C: gl.constexpr, MORE_KEYS: gl.constexpr,
):  # fmt: skip
    """See the module. ``MORE_KEYS``: there are more than these.

    ``partial`` (groups of rows, B, H, Q, K; K, Q for a ``TRANSPOSED`` bias) has these keys, in
    float32; `waiting_at` describes ``waiting``.
    """
    first_q, head, group, first_row, rows = parts.place_of_cta(num_queries, num_heads, num_rows)
    batch = gl.program_id(1)

    q = ring.new(q_desc, AHEAD, 2)
    out, rest = ring.along(q, out_desc, AHEAD), ring.along(q, rest_desc, AHEAD)
    grad, lse = ring.along(q, grad_desc, AHEAD), ring.along(q, lse_desc, AHEAD)
    gate = grad
    if HAS_GATE:
        gate = ring.along(q, gate_desc, AHEAD)
    delta_smem = smem.numbers(gl.float32, AHEAD, 64)
    result_smem = smem.tile(grad_q_desc)
    # A group's keys are announced by TMA and, for the mask, by the loader; both give a row back.
    full, empty = smem.barriers(2 * STAGES, 2), smem.barriers(STAGES, 2)
    k = ring.Ring(k_desc, smem.tiles(k_desc, 2 * STAGES), full, empty)
    v = ring.along(k, v_desc, 2 * STAGES)
    bias_smem = smem.tiles(bias_desc, 2)
    other_smem = gl.allocate_shared_memory(gl.float32, [C // 8, 4, 8, 4, 2, 2], parts.BY_THREAD)
    mask_smem = smem.numbers(gl.bfloat16, 2 * STAGES, BLOCK_K)
    unmasked_smem = smem.numbers(gl.int32, STAGES, 1)
    open = smem.barriers(AHEAD, 2)
    # One allocation, since the bias's is waited for only once: see `smem`.
    more = smem.barriers(3, 1)

    delta_ptr += (batch.to(gl.int64) * num_rows * num_heads + head) * statistics_stride
    start = (group * gl.num_programs(1) + batch).to(gl.int64) * num_heads + head
    partial_ptr += start * num_queries * (2 * BLOCK_K if MORE_KEYS else num_keys)
    mask = parts.mask_of(mask_ptr, batch, mask_strides, num_keys)
    two_groups(Cta(
        q, grad, out, rest, gate, lse, delta_smem, k, v, bias_desc, bias_smem, mask, mask_smem,
        unmasked_smem, grad_q_desc, result_smem, other_smem, more.index(1), more.index(2), open,
        more.index(0), grad_gate_desc, grad_o_desc, scaled_q_desc, delta_ptr,
        num_heads * statistics_stride, partial_ptr, waiting_ptr, scale,
        batch, head, first_q, first_row, rows, gl.to_tensor(num_rows), gl.to_tensor(num_heads),
        gl.to_tensor(num_queries), HAS_GATE, BIAS_SCALE, SCALE_Q, TRANSPOSED, C, MORE_KEYS,
    ), compute, load, GROUP_REGISTERS)  # fmt: skip


def launch(
    call: Call,
    bias: Tensor,
    kept: Kept,
    grad_out: Tensor,
    gradients: Gradients,
    shared: Shared,
    waiting: Tensor | None,
) -> tuple[Tensor, ...]:
    """Fill the gradients of queries and gate, and ``shared``; see the backward of the package.

    Returns sums of the bias's gradient. Where there are more keys than KEYS, they are of the first,
    and the gradients of queries are left in ``waiting`` for `backward_queries`.
    """
    q, k, v, gate, mask, *_ = call
    lse = kept.lse
    rest = new_rest(q).zero_() if kept.rest is None else kept.rest
    blocks = triton.cdiv(call.num_queries, 64)
    ctas, groups = launches.dealt(call, blocks, ctas_an_sm=1, unit=blocks * call.num_heads)
    sums = new_sums(bias[..., :KEYS], groups)
    q_desc = launches.rows(q, 64)
    attention_backward_queries_bias_hopper_kernel[(ctas, call.batch)](
        q_desc, launches.rows(k, BLOCK_K.value), launches.rows(v, BLOCK_K.value),
        q_desc if gate is None else launches.rows(gate, 64), launches.rows(kept.out, 64),
        launches.rows(rest, 64), launches.rows(grad_out, 64), launches.statistics(lse, 64),
        launches.bias(bias, q, 64, BLOCK_K.value), launches.rows(gradients.q, 64),
        q_desc if gradients.gate is None else launches.rows(gradients.gate, 32),
        launches.rows(shared.grad_o, 32), launches.rows(shared.q, 32), shared.delta, mask,
        sums, lse if waiting is None else waiting, call.mask_strides, lse.stride(2),
        *call.scalars,
        HAS_GATE=gate is not None, BIAS_SCALE=call.bias_scale, SCALE_Q=call.scales_q,
        TRANSPOSED=transposed(bias), C=padded(call.channels), MORE_KEYS=waiting is not None,
        num_warps=4,
    )  # fmt: skip
    return (sums,)
