"""Gradients of keys and values on Hopper GPUs; see `parts`.

The loader brings the bias once, for each row keys and values, and queries, their gradient and
statistics in a ring of blocks. The warp group gives a block back when it has added its part to the
gradients, which take the places of keys and values at the end of a row. Logits are transposed (keys
x queries): so the weights are left operands, from registers, of the products for the gradients.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait
from scalefold_kernels.gluon import mma_layout, one_group, zeros
from scalefold_kernels.ops.attention.arguments import Call, transposed
from scalefold_kernels.ops.attention.hopper import launches, parts

Cta = namedtuple(
    "Cta",
    "q grad k_desc v_desc lse_desc delta_desc bias_desc grad_k_desc grad_v_desc key_smem keys "
    "statistics_smem bias_smem unmasked_smem bias_full mask batch head first_k first_row rows "
    "scale HAS_BIAS BIAS_SCALE TRANSPOSED C BLOCK_Q NUM_BLOCKS SIDES",
)


@gluon.jit
def load_own(row, i, side, unmasked, cta):
    """Start the copies of the ``i``-th row's keys and values, with how many take part.

    They go to a side of shared memory, once it is empty.
    """
    ring.wait_empty(cta.keys, i, smem.tile_bytes(cta.k_desc, cta.v_desc))
    at = [cta.batch, row, cta.first_k, cta.head, 0]
    ready = cta.keys.full.index(side)
    async_load(cta.k_desc, at, ready, cta.key_smem.index(2 * side))
    async_load(cta.v_desc, at, ready, cta.key_smem.index(2 * side + 1))
    parts.announce(unmasked, cta.unmasked_smem.index(side), ready)


@gluon.jit
def load_block(slot, row, first, cta):
    """Start the copies of a block of queries, gradients and statistics to a slot of the ring."""
    at, ready = [cta.batch, row, first, cta.head, 0], cta.q.full.index(slot)
    statistics_at = [cta.batch, row, cta.head, first]
    lse, delta = cta.statistics_smem.index(2 * slot), cta.statistics_smem.index(2 * slot + 1)
    bytes: gl.constexpr = smem.tile_bytes(cta.q.desc, cta.grad.desc, cta.lse_desc, cta.delta_desc)
    mbarrier.expect(ready, bytes)
    ring.copy(cta.q, slot, at)
    ring.copy(cta.grad, slot, at)
    async_load(cta.lse_desc, statistics_at, ready, lse)
    async_load(cta.delta_desc, statistics_at, ready, delta)


@gluon.jit
def load(cta):
    if cta.HAS_BIAS:
        mbarrier.expect(cta.bias_full, cta.NUM_BLOCKS * smem.tile_bytes(cta.bias_desc))
        for n in range(cta.NUM_BLOCKS):
            tile = cta.bias_smem.index(n)
            parts.copy_bias(
                cta.bias_desc, tile, cta.bias_full, cta.batch, cta.head, n * cta.BLOCK_Q,
                cta.first_k, cta.TRANSPOSED,
            )  # fmt: skip
    for i in range(cta.rows):
        row = cta.first_row + i
        side = i % cta.SIDES
        unmasked = parts.count_unmasked(cta.mask, row)
        if cta.SIDES > 1:
            load_own(row, i, side, unmasked, cta)
        for j in range(cta.NUM_BLOCKS):
            slot = parts.wait_room(cta.q, i, j, cta.NUM_BLOCKS)
            load_block(slot, row, j * cta.BLOCK_Q, cta)
            if cta.SIDES == 1:
                # Their slot is empty at the end of the row before: blocks come first.
                if j == cta.q.full.shape[0] - 1:
                    load_own(row, i, side, unmasked, cta)


@gluon.jit
def differentiate_block(grad_k, grad_v, k, v, i, j, alike, unit, cta):
    """Gradients of the ``i``-th row's keys and values with those from block ``j`` of queries.

    ``alike``: all keys have the same weight.
    """
    dtype: gl.constexpr = cta.q.desc.dtype
    LOGITS: gl.constexpr = mma_layout(cta.BLOCK_Q)
    A_P: gl.constexpr = gl.DotOperandLayout(0, mma_layout(cta.C), 2)
    by_column: gl.constexpr = gl.SliceLayout(0, LOGITS)
    # Logits are transposed, and so is the bias unless memory has it so.
    s = parts.load_bias(cta.bias_smem.index(j), cta.BLOCK_Q, cta.HAS_BIAS, not cta.TRANSPOSED)
    slot = parts.wait_block(cta.q, i, j, cta.NUM_BLOCKS)
    q = cta.q.slots.index(slot).reshape([cta.BLOCK_Q, cta.C])
    grad = cta.grad.slots.index(slot).reshape([cta.BLOCK_Q, cta.C])
    # The accumulator starts from what is subtracted from the logits, too: nothing waits for it.
    lse = cta.statistics_smem.index(2 * slot).reshape([cta.BLOCK_Q])
    s -= (lse.load(by_column) * (1.0 / unit))[None, :]
    s = mma(k, q.permute((1, 0)), s, is_async=True)
    grad_p = mma(v, grad.permute((1, 0)), zeros(64, cta.BLOCK_Q), use_acc=False, is_async=True)
    s, grad_p = mma_wait(0, [s, grad_p])
    if alike:
        s = zeros(64, cta.BLOCK_Q) - lse.load(by_column)[None, :]
    else:
        s = s * unit
    p = gl.exp2(s)
    delta = cta.statistics_smem.index(2 * slot + 1).reshape([cta.BLOCK_Q]).load(by_column)
    grad_s = p * (grad_p - delta[None, :])
    p = gl.convert_layout(p.to(dtype), A_P)
    grad_v = mma(p, grad, grad_v, is_async=True)
    grad_s = gl.convert_layout(grad_s.to(dtype), A_P)
    grad_k = mma(grad_s, q, grad_k, is_async=True)
    grad_v, grad_k = mma_wait(0, [grad_v, grad_k])
    mbarrier.arrive(cta.q.empty.index(slot))
    return grad_k, grad_v


@gluon.jit
def compute(cta):
    dtype: gl.constexpr = cta.q.desc.dtype
    OUT: gl.constexpr = mma_layout(cta.C)
    own = cta.first_k + gl.arange(0, 64, layout=gl.SliceLayout(1, OUT))
    unit = parts.LOG2E * cta.BIAS_SCALE if cta.HAS_BIAS else parts.LOG2E * cta.scale
    if cta.HAS_BIAS:
        mbarrier.wait(cta.bias_full, 0)
    for i in range(cta.rows):
        row = cta.first_row + i
        side = ring.wait_full(cta.keys, i)
        unmasked = parts.announced(cta.unmasked_smem.index(side))
        # Gradients of masked keys become 0 below; if all are masked, all have the same weight.
        some_masked = (unmasked > 0) & (unmasked < cta.mask.num_keys)
        k = cta.key_smem.index(2 * side).reshape([64, cta.C])
        v = cta.key_smem.index(2 * side + 1).reshape([64, cta.C])
        grad_k = zeros(64, cta.C)
        grad_v = zeros(64, cta.C)
        alike = unmasked == 0
        for j in range(cta.NUM_BLOCKS):
            grad_k, grad_v = differentiate_block(grad_k, grad_v, k, v, i, j, alike, unit, cta)
        # With a bias, queries came multiplied by the scale and divided by BIAS_SCALE.
        grad_k *= cta.BIAS_SCALE if cta.HAS_BIAS else cta.scale
        if some_masked:
            at = cta.mask.start + row.to(gl.int64) * cta.mask.stride_r + own * cta.mask.stride_k
            own_mask = gl.load(at, mask=own < cta.mask.num_keys, other=0.0) != 0
            grad_k = gl.where(own_mask[:, None], grad_k, 0.0)
            grad_v = gl.where(own_mask[:, None], grad_v, 0.0)
        k.store(grad_k.to(dtype))
        v.store(grad_v.to(dtype))
        fence_async_shared()
        at = [cta.batch, row, cta.first_k, cta.head, 0]
        async_store(cta.grad_k_desc, at, cta.key_smem.index(2 * side))
        async_store(cta.grad_v_desc, at, cta.key_smem.index(2 * side + 1))
        # The place is another row's as soon as the gradients have left it.
        tma.store_wait(0)
        mbarrier.arrive(cta.keys.empty.index(side))


@gluon.jit
def attention_backward_keys_hopper_kernel(
    q_desc, k_desc, v_desc, grad_desc, lse_desc, delta_desc, bias_desc, grad_k_desc, grad_v_desc,
    mask_ptr, mask_strides, num_rows, num_heads, num_queries, num_keys, scale,
    HAS_BIAS: gl.constexpr, BIAS_SCALE: gl.constexpr, TRANSPOSED: gl.constexpr, C: gl.constexpr,
    BLOCK_Q: gl.constexpr, NUM_BLOCKS: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr,
):  # fmt: skip
    """See the module. Queries beyond the last read as zeros and so add nothing.

    With a bias queries are as forward multiplied them; without, logits are scaled here.
    """
    first_k, head, _, first_row, rows = parts.place_of_cta(num_keys, num_heads, num_rows)
    batch = gl.program_id(1)

    # Keys and values of SIDES rows; a ring of queries, gradients and statistics; bias.
    key_smem = smem.tiles(k_desc, 2 * SIDES)
    q = ring.new(q_desc, STAGES, 1)
    grad = ring.along(q, grad_desc, STAGES)
    statistics_smem = smem.tiles(lse_desc, 2 * STAGES)
    bias_smem = smem.tiles(bias_desc, NUM_BLOCKS if HAS_BIAS else 1)
    unmasked_smem = smem.numbers(gl.int32, SIDES, 1)
    # TMA and, for the mask, the loader arrive. The last barrier is the bias's: see `smem`.
    keys = ring.Barriers(smem.barriers(SIDES, 2), smem.barriers(SIDES + 1, 1))
    mask = parts.mask_of(mask_ptr, batch, mask_strides, num_keys)
    one_group(Cta(
        q, grad, k_desc, v_desc, lse_desc, delta_desc, bias_desc, grad_k_desc, grad_v_desc,
        key_smem, keys, statistics_smem, bias_smem, unmasked_smem, keys.empty.index(SIDES), mask,
        batch, head, first_k, first_row, rows, scale,
        HAS_BIAS, BIAS_SCALE, TRANSPOSED, C, BLOCK_Q, NUM_BLOCKS, SIDES,
    ), compute, load, parts.LOADER_REGISTERS)  # fmt: skip


class Shared(NamedTuple):
    """What the earlier kernels of backward leave for this one.

    Attributes
    ----------
    q : Tensor
        Queries; where there is a bias as forward multiplied them.
    grad_o, delta : Tensor
        Gradient of the result without the gate; sums of its products with the result.
    """

    q: Tensor
    grad_o: Tensor
    delta: Tensor


def launch(
    call: Call, bias: Tensor | None, lse: Tensor, shared: Shared, grad_k: Tensor, grad_v: Tensor
) -> None:
    """Fill ``grad_k`` and ``grad_v``."""
    _, k, v, _, mask, *_ = call
    config = constants(call)
    block, blocks = config["BLOCK_Q"], triton.cdiv(call.num_keys, 64)
    ctas, _ = launches.dealt(call, blocks, ctas_an_sm(call, config), blocks)
    attention_backward_keys_hopper_kernel[(ctas, call.batch)](
        launches.rows(shared.q, block), launches.rows(k, 64), launches.rows(v, 64),
        launches.rows(shared.grad_o, block), launches.statistics(lse, block),
        launches.statistics(shared.delta, block), launches.bias(bias, shared.q, block, 64),
        launches.rows(grad_k, 64), launches.rows(grad_v, 64), mask, call.mask_strides,
        *call.scalars,
        HAS_BIAS=bias is not None, BIAS_SCALE=call.bias_scale, TRANSPOSED=transposed(bias),
        **config,
    )  # fmt: skip


def constants(call: Call) -> dict[str, int]:
    config = call.config("attention_backward_keys_hopper", "sm_90")
    config = launches.in_blocks(call, config, triton.cdiv(call.num_queries, config["BLOCK_Q"]))
    # The next row's keys may be on their way unless that costs a CTA.
    sides = max(2, 1, key=lambda n: ctas_an_sm(call, {**config, "SIDES": n}))
    return config | {"SIDES": sides}


def ctas_an_sm(call: Call, config: dict[str, int]) -> int:
    """How many CTAs fit: shared memory has bias, queries and gradient, keys, values, statistics."""
    block, channels, ring = config["BLOCK_Q"], config["C"], config["STAGES"]
    bias = 2 * 64 * block * (1 if call.bias is None else config["NUM_BLOCKS"])
    rows = 2 * channels * (2 * ring * block + 2 * config["SIDES"] * 64)
    return launches.fitting(bias + rows + 8 * ring * block, 2, config["maxnreg"])
