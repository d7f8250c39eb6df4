"""Gradients of keys and values on Hopper GPUs; see `parts`.

Logits are transposed (keys x queries), so that the weights are left operands of the two products
that give the gradients, from registers as they are.
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
    load_bias,
    load_mask,
    place_of_program,
    stacked,
)
from scalefold_kernels.hopper import mma_layout, new_barriers, thread_barrier


@gluon.jit
def load_block(
    q_desc, grad_desc, lse_desc, delta_desc, q_smem, grad_smem, statistics_smem,
    ready, place, batch, row, head, wanted, first, C: gl.constexpr, BLOCK_Q: gl.constexpr,
):  # fmt: skip
    """Start the copies of a block of queries, gradients and statistics to a place of the ring."""
    at = [batch, row, first, head, 0]
    statistics_at = [batch, row, head, first]
    lse, delta = statistics_smem.index(2 * place), statistics_smem.index(2 * place + 1)
    mbarrier.expect(ready, 2 * BLOCK_Q * C * 2 + 2 * BLOCK_Q * 4, pred=wanted)
    tma.async_copy_global_to_shared(q_desc, at, ready, q_smem.index(place), pred=wanted)
    tma.async_copy_global_to_shared(grad_desc, at, ready, grad_smem.index(place), pred=wanted)
    tma.async_copy_global_to_shared(lse_desc, statistics_at, ready, lse, pred=wanted)
    tma.async_copy_global_to_shared(delta_desc, statistics_at, ready, delta, pred=wanted)


@gluon.jit
def new_memory(
    q_desc, k_desc, lse_desc, bias_desc,
    HAS_BIAS: gl.constexpr, C: gl.constexpr,
    BLOCK_Q: gl.constexpr, NUM_BLOCKS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Keys and values; their gradients; a ring of queries, gradients and statistics; bias."""
    dtype: gl.constexpr = q_desc.dtype
    keys: gl.constexpr = [2, 1, 1, 64, 1, C]
    queries: gl.constexpr = [PLACES, 1, 1, BLOCK_Q, 1, C]
    tiles: gl.constexpr = stacked(NUM_BLOCKS if HAS_BIAS else 1, bias_desc.block_shape)
    key_smem = gl.allocate_shared_memory(dtype, keys, k_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, keys, k_desc.layout)
    q_smem = gl.allocate_shared_memory(dtype, queries, q_desc.layout)
    grad_smem = gl.allocate_shared_memory(dtype, queries, q_desc.layout)
    numbers: gl.constexpr = [2 * PLACES, 1, 1, 1, BLOCK_Q]
    statistics_smem = gl.allocate_shared_memory(gl.float32, numbers, lse_desc.layout)
    bias_smem = gl.allocate_shared_memory(dtype, tiles, bias_desc.layout)
    return key_smem, out_smem, q_smem, grad_smem, statistics_smem, bias_smem


@gluon.jit
def differentiate_block(
    grad_k, grad_v, k, v, j, place, stretch, memory,
    HAS_BIAS: gl.constexpr, TURNED: gl.constexpr, C: gl.constexpr, BLOCK_Q: gl.constexpr,
):  # fmt: skip
    """Gradients of a row's keys and values with those from block ``j`` of queries, at a place."""
    _, _, q_smem, grad_smem, statistics_smem, bias_smem = memory
    dtype: gl.constexpr = q_smem.dtype
    S: gl.constexpr = mma_layout(BLOCK_Q)
    A_P: gl.constexpr = gl.DotOperandLayout(0, mma_layout(C), 2)
    by_column: gl.constexpr = gl.SliceLayout(0, S)
    # Logits are transposed, and so is the bias unless memory has it so.
    s = load_bias(bias_smem.index(j), BLOCK_Q, HAS_BIAS, not TURNED)
    q = q_smem.index(place).reshape([BLOCK_Q, C])
    grad = grad_smem.index(place).reshape([BLOCK_Q, C])
    s = warpgroup_mma(k, q.permute((1, 0)), s, use_acc=HAS_BIAS, is_async=True)
    grad_p = gl.full([64, BLOCK_Q], 0.0, gl.float32, S)
    grad_p = warpgroup_mma(v, grad.permute((1, 0)), grad_p, use_acc=False, is_async=True)
    lse = statistics_smem.index(2 * place).reshape([BLOCK_Q]).load(by_column)
    s, grad_p = warpgroup_mma_wait(0, [s, grad_p])
    p = gl.exp2(s * stretch - lse[None, :])
    delta = statistics_smem.index(2 * place + 1).reshape([BLOCK_Q]).load(by_column)
    grad_s = p * (grad_p - delta[None, :])
    p = gl.convert_layout(p.to(dtype), A_P)
    grad_v = warpgroup_mma(p, grad, grad_v, is_async=True)
    grad_s = gl.convert_layout(grad_s.to(dtype), A_P)
    grad_k = warpgroup_mma(grad_s, q, grad_k, is_async=True)
    grad_v, grad_k = warpgroup_mma_wait(0, [grad_v, grad_k])
    return grad_k, grad_v


@gluon.jit
def backward_keys_kernel(
    q_desc, k_desc, v_desc, grad_desc, lse_desc, delta_desc, bias_desc, grad_k_desc, grad_v_desc,
    mask, mask_stride_b, mask_stride_r, mask_stride_k,
    num_rows, num_heads, num_queries, num_keys, scale,
    HAS_BIAS: gl.constexpr, BIAS_SCALE: gl.constexpr, TURNED: gl.constexpr, C: gl.constexpr,
    BLOCK_Q: gl.constexpr, NUM_BLOCKS: gl.constexpr, KEYS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """See the module. Queries beyond the last read as zeros and so add nothing.

    With a bias queries are scaled, as forward multiplied them; without, logits are here.
    """
    first_k, head, _, first_row, rows = place_of_program(num_keys, num_heads, num_rows)
    batch = gl.program_id(1)

    memory = new_memory(
        q_desc, k_desc, lse_desc, bias_desc, HAS_BIAS, C, BLOCK_Q, NUM_BLOCKS, PLACES
    )
    key_smem, out_smem, q_smem, grad_smem, statistics_smem, bias_smem = memory
    full, others = new_barriers(PLACES, 1), new_barriers(2, 1)
    keys_full, bias_full = others.index(0), others.index(1)
    fence_async_shared()

    dtype: gl.constexpr = q_desc.dtype
    OUT: gl.constexpr = mma_layout(C)
    A: gl.constexpr = gl.DotOperandLayout(0, mma_layout(BLOCK_Q), 2)

    mbarrier.expect(keys_full, 2 * 64 * C * 2)
    first = [batch, first_row, first_k, head, 0]
    tma.async_copy_global_to_shared(k_desc, first, keys_full, key_smem.index(0))
    tma.async_copy_global_to_shared(v_desc, first, keys_full, key_smem.index(1))
    if HAS_BIAS:
        mbarrier.expect(bias_full, NUM_BLOCKS * 64 * BLOCK_Q * 2)
        for n in range(NUM_BLOCKS):
            tile = bias_smem.index(n)
            copy_bias(bias_desc, tile, bias_full, batch, head, n * BLOCK_Q, first_k, TURNED)
    for n in gl.static_range(PLACES):
        load_block(
            q_desc, grad_desc, lse_desc, delta_desc, q_smem, grad_smem, statistics_smem,
            full.index(n), n, batch, first_row, head, True, n * BLOCK_Q, C, BLOCK_Q,
        )  # fmt: skip

    mask += batch.to(gl.int64) * mask_stride_b
    unmasked = count(load_mask(mask, mask_stride_r, mask_stride_k, first_row, num_keys, KEYS))
    own = first_k + gl.arange(0, 64, layout=gl.SliceLayout(1, OUT))
    unit = LOG2E * BIAS_SCALE if HAS_BIAS else LOG2E * scale
    if HAS_BIAS:
        mbarrier.wait(bias_full, 0)
    for i in range(rows):
        row = first_row + i
        more = i + 1 < rows
        # Of a masked key nothing is kept below; without unmasked keys all logits are 0.
        stretch = gl.where(unmasked == 0, 0.0, unit)
        some_masked = (unmasked > 0) & (unmasked < num_keys)
        after = gl.where(more, row + 1, row)
        kept = load_mask(mask, mask_stride_r, mask_stride_k, after, num_keys, KEYS)
        mbarrier.wait(keys_full, i & 1)
        k = key_smem.index(0).reshape([64, C]).load(A)
        v = key_smem.index(1).reshape([64, C]).load(A)
        # All have keys and values: their places may be filled.
        thread_barrier()
        mbarrier.expect(keys_full, 2 * 64 * C * 2, pred=more)
        at = [batch, row + 1, first_k, head, 0]
        tma.async_copy_global_to_shared(k_desc, at, keys_full, key_smem.index(0), pred=more)
        tma.async_copy_global_to_shared(v_desc, at, keys_full, key_smem.index(1), pred=more)
        grad_k = gl.full([64, C], 0.0, gl.float32, OUT)
        grad_v = gl.full([64, C], 0.0, gl.float32, OUT)
        for j in range(NUM_BLOCKS):
            # PLACES divides NUM_BLOCKS: a block has the same place in every row.
            place = j % PLACES
            ready = full.index(place)
            mbarrier.wait(ready, (i * (NUM_BLOCKS // PLACES) + j // PLACES) & 1)
            grad_k, grad_v = differentiate_block(
                grad_k, grad_v, k, v, j, place, stretch, memory, HAS_BIAS, TURNED, C, BLOCK_Q
            )
            # All are done with the block.
            thread_barrier()
            beyond = j + PLACES >= NUM_BLOCKS
            load_block(
                q_desc, grad_desc, lse_desc, delta_desc, q_smem, grad_smem, statistics_smem,
                ready, place, batch, gl.where(beyond, row + 1, row), head, more | (not beyond),
                gl.where(beyond, j + PLACES - NUM_BLOCKS, j + PLACES) * BLOCK_Q, C, BLOCK_Q,
            )  # fmt: skip
        unmasked = count(kept)
        # With a bias, queries came scaled, and divided by BIAS_SCALE.
        grad_k *= BIAS_SCALE if HAS_BIAS else scale
        if some_masked:
            places = mask + row.to(gl.int64) * mask_stride_r + own * mask_stride_k
            keep = gl.load(places, mask=own < num_keys, other=0.0) != 0
            grad_k = gl.where(keep[:, None], grad_k, 0.0)
            grad_v = gl.where(keep[:, None], grad_v, 0.0)
        # The gradients of the row before have left.
        tma.store_wait(0)
        out_smem.index(0).reshape([64, C]).store(grad_k.to(dtype))
        out_smem.index(1).reshape([64, C]).store(grad_v.to(dtype))
        fence_async_shared()
        at = [batch, row, first_k, head, 0]
        tma.async_copy_shared_to_global(grad_k_desc, at, out_smem.index(0))
        tma.async_copy_shared_to_global(grad_v_desc, at, out_smem.index(1))
    tma.store_wait(0)
