"""Gradients of keys and values with heads of 8 channels; see `parts`.

Logits are transposed, so that a warp has 16 keys and goes through the queries. The gradient of the
ungated result has 8 more channels in shared memory, of which three hold ``-delta`` in parts of
bfloat16, and values have ones there: the product of both is what the weights are multiplied by.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from scalefold_kernels.attention.hopper.narrow.parts import (
    CHANNELS,
    LINES,
    TILE,
    WORDS,
    copy_positions,
    load_bias,
    load_columns,
    load_padded_columns,
    pack,
    pad_words,
    product,
    product_and_pad,
    quarters,
    result_words,
    store_bias,
    store_words,
    tile_layout,
    whole,
    word_places,
    words_of,
)
from scalefold_kernels.attention.hopper.parts import LOG2E, count, load_mask, place_of_program
from scalefold_kernels.gluon import thread_barrier


@gluon.jit
def load_statistics(lse, delta, query, num_queries):
    """Of a row; beyond the last query every weight is 0."""
    inside = query < num_queries
    return (
        gl.load(lse + query, mask=inside, other=float("inf")),
        gl.load(delta + query, mask=inside, other=0.0),
    )


@gluon.jit
def store_statistics(statistics, lse_line, pad, layout: gl.constexpr):
    """``-delta`` goes to the pad, as three bfloat16 whose sum it is."""
    lse, delta = statistics
    lse_line.store(lse)
    first = (-delta).to(gl.bfloat16).to(gl.float32)
    second = (-delta - first).to(gl.bfloat16).to(gl.float32)
    third = -delta - first - second
    word = gl.arange(0, 4, layout=gl.SliceLayout(0, layout))[None, :]
    two, one = pack(first, second)[:, None], pack(third, gl.zeros_like(third))[:, None]
    pad.store(gl.where(word == 0, two, gl.where(word == 1, one, 0)))


@gluon.jit
def new_memory(SIZE: gl.constexpr, BLOCK: gl.constexpr, BLOCKS: gl.constexpr):
    """For two rows: queries, gradients and their pads, also as words; ``lse``, also in pairs; bias.

    Returns what `differentiate_block` reads; ``lse`` and the pads as they are written.
    """
    dtype: gl.constexpr = gl.bfloat16
    W: gl.constexpr = gl.num_warps()
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_ring = gl.allocate_shared_memory(dtype, [2, SIZE, CHANNELS], LINES)
    # The second of each two places is the pad.
    grad_ring = gl.allocate_shared_memory(dtype, [4, SIZE, CHANNELS], LINES)
    lse_ring = gl.allocate_shared_memory(gl.float32, [2, SIZE], flat)
    tiles = gl.allocate_shared_memory(dtype, [BLOCKS, BLOCK // 16, W, 8, 4, 2, 2, 2], TILE)
    q_words = q_ring._reinterpret(gl.int32, [2, SIZE // 8, 8, 4], WORDS)
    padded: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    grad_words = grad_ring._reinterpret(gl.int32, [2, 2, SIZE // 8, 8, 4], padded)
    pads = grad_ring._reinterpret(gl.int32, [4, SIZE, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    pairs: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    lse_pairs = lse_ring._reinterpret(gl.float32, [2, SIZE // 8, 4, 2], pairs)
    return (q_ring, q_words, grad_ring, grad_words, lse_pairs, tiles), lse_ring, pads


@gluon.jit
def differentiate_block(
    sums_k, sums_v, n: gl.constexpr, place, keys, unit, ones, none, memory,
    M: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Gradients of a row's keys and values with those from block ``n`` of queries, at a place.

    ``keys``: upper and lower words of keys and of values.
    """
    k_upper, k_lower, v_upper, v_lower = keys
    q_ring, q_words, grad_ring, grad_words, lse_pairs, tiles = memory
    S: gl.constexpr = tile_layout(gl.num_warps())
    A: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, S, 2)
    twice = gl.join(none, none)
    PAIRS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, twice.type.layout))
    dtype: gl.constexpr = gl.bfloat16
    block_q = load_columns(q_words.index(place), n * BLOCK // 8, none)
    block_grad, minus_delta = load_padded_columns(grad_words.index(place), n * BLOCK // 8, none)
    line = lse_pairs.index(place).slice(n * BLOCK // 8, BLOCK // 8, dim=0)
    left, right = gl.split(gl.expand_dims(gl.expand_dims(line.load(PAIRS), 0), 0))
    b0, b1, b2, b3 = load_bias(tiles.index(n), M, BLOCK)
    s0, s1, s2, s3 = product(k_upper, k_lower, block_q, b0, b1, b2, b3)
    d0, d1, d2, d3 = product_and_pad(
        v_upper, v_lower, ones, block_grad, minus_delta, none, none, none, none
    )
    p0, p1 = gl.exp2(s0 * unit - left), gl.exp2(s1 * unit - right)
    p2, p3 = gl.exp2(s2 * unit - left), gl.exp2(s3 * unit - right)
    p = gl.convert_layout(whole(p0, p1, p2, p3, M, BLOCK, S).to(dtype), A)
    tile = grad_ring.index(2 * place).slice(n * BLOCK, BLOCK, dim=0)
    sums_v = mma_v2(p, tile.load(B), sums_v)
    grad_s = whole(p0 * d0, p1 * d1, p2 * d2, p3 * d3, M, BLOCK, S).to(dtype)
    tile = q_ring.index(place).slice(n * BLOCK, BLOCK, dim=0)
    return mma_v2(gl.convert_layout(grad_s, A), tile.load(B), sums_k), sums_v


@gluon.jit
def narrow_keys_kernel(
    q, k, v, grad, bias, mask, lse, delta, grad_k, grad_v,
    q_strides, grad_strides, k_strides, v_strides, slot_strides, bias_strides, mask_strides,
    lse_stride, num_rows, num_heads, num_queries, num_keys,
    BIAS_SCALE: gl.constexpr,
    M: gl.constexpr, BLOCK: gl.constexpr, BLOCKS: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """``M`` keys a program. Strides of ``q`` and ``grad`` are in units of 8 elements.

    Queries are as forward multiplied them.
    """
    first_k, head, _, first_row, rows = place_of_program(num_keys, num_heads, num_rows, M)
    batch = gl.program_id(1).to(gl.int64)
    q_b, q_r, q_n, q_h = q_strides
    grad_b, grad_r, grad_n, grad_h = grad_strides
    k_b, k_r, k_n, k_h = k_strides
    v_b, v_r, _, v_h = v_strides
    slot_b, slot_r, slot_n, slot_h = slot_strides
    bias_b, bias_h, bias_q, bias_k = bias_strides
    mask_b, mask_r, mask_k = mask_strides

    W: gl.constexpr = gl.num_warps()
    S: gl.constexpr = tile_layout(W)
    SIZE: gl.constexpr = BLOCKS * BLOCK
    none = quarters(gl.full([M, BLOCK], 0.0, gl.float32, S))[0]
    memory, lse_ring, pads = new_memory(SIZE, BLOCK, BLOCKS)
    q_ring, _, grad_ring, _, _, tiles = memory
    store_bias(
        bias + (batch * bias_b + head * bias_h), tiles, first_k, bias_k, bias_q,
        num_keys, num_queries, M, BLOCK, BLOCKS, 0.0,
    )  # fmt: skip

    VEC: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [W, 1], [1, 0])
    LINE: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [W, 1], [1, 0])
    query = gl.arange(0, SIZE, layout=gl.SliceLayout(1, VEC))
    query_in = (query < num_queries)[:, None]
    channel = gl.arange(0, CHANNELS, layout=gl.SliceLayout(0, VEC))
    query_at = query[:, None] * (8 * q_n) + channel[None, :]
    grad_at = query[:, None] * (8 * grad_n) + channel[None, :]
    noted = gl.arange(0, SIZE, layout=gl.SliceLayout(1, LINE))
    q += 8 * (batch * q_b + head * q_h)
    grad += 8 * (batch * grad_b + head * grad_h)
    lse += (batch * num_rows * num_heads + head) * lse_stride
    delta += (batch * num_rows * num_heads + head) * lse_stride
    step = num_heads * lse_stride
    mask += batch * mask_b

    row_at, word = word_places(none)
    upper, lower = first_k + row_at, first_k + row_at + 8
    upper_in, lower_in = upper < num_keys, lower < num_keys
    k = words_of(k + (batch * k_b + head * k_h))
    v = words_of(v + (batch * v_b + head * v_h))
    upper_at = gl.minimum(upper, num_keys - 1) * (k_n // 2) + word
    lower_at = gl.minimum(lower, num_keys - 1) * (k_n // 2) + word
    start = batch * slot_b + head * slot_h + first_k.to(gl.int64) * slot_n
    grad_k, grad_v = words_of(grad_k + start), words_of(grad_v + start)
    slot_at = row_at * (slot_n // 2) + word
    # 1 in bfloat16, in the first three of eight channels.
    ones = pad_words(none, 0x3F803F80, 0x3F80)

    row = first_row.to(gl.int64)
    last = row + rows - 1
    copy_positions(q + row * (8 * q_r), query_at, query_in, q_ring.index(0))
    copy_positions(grad + row * (8 * grad_r), grad_at, query_in, grad_ring.index(0))
    async_copy.commit_group()
    now = load_statistics(lse + row * step, delta + row * step, noted, num_queries)
    store_statistics(now, lse_ring.index(0), pads.index(1), LINE)
    after = gl.minimum(row + 1, last)
    ahead = load_statistics(lse + after * step, delta + after * step, noted, num_queries)
    k_next = gl.load(k + row * (k_r // 2) + upper_at), gl.load(k + row * (k_r // 2) + lower_at)
    v_next = gl.load(v + row * (v_r // 2) + upper_at), gl.load(v + row * (v_r // 2) + lower_at)
    for i in range(rows):
        place, other = i & 1, 1 - (i & 1)
        async_copy.wait_group(0)
        # This row's copies are there, and all are done with the row before, in the other place.
        thread_barrier()
        row = (first_row + i).to(gl.int64)
        after = gl.minimum(row + 1, last)
        copy_positions(q + after * (8 * q_r), query_at, query_in, q_ring.index(other))
        copy_positions(grad + after * (8 * grad_r), grad_at, query_in, grad_ring.index(2 * other))
        async_copy.commit_group()
        store_statistics(ahead, lse_ring.index(other), pads.index(2 * other + 1), LINE)
        later = gl.minimum(row + 2, last)
        ahead = load_statistics(lse + later * step, delta + later * step, noted, num_queries)
        # To the compiler both places are one memory: it would put this barrier between loads below.
        thread_barrier()
        unmasked = count(load_mask(mask, mask_r, mask_k, row, num_keys, KEYS))
        # Of a masked key nothing is kept below; without unmasked keys all logits are 0.
        unit = gl.where(unmasked > 0, LOG2E * BIAS_SCALE, 0.0)
        some_masked = (unmasked > 0) & (unmasked < num_keys)
        keys = (
            k_next[0][:, :, None, :], k_next[1][:, :, None, :],
            v_next[0][:, :, None, :], v_next[1][:, :, None, :],
        )  # fmt: skip
        k_row, v_row = k + after * (k_r // 2), v + after * (v_r // 2)
        k_next = gl.load(k_row + upper_at), gl.load(k_row + lower_at)
        v_next = gl.load(v_row + upper_at), gl.load(v_row + lower_at)
        sums_k = gl.full([M, CHANNELS], 0.0, gl.float32, S)
        sums_v = gl.full([M, CHANNELS], 0.0, gl.float32, S)
        for n in gl.static_range(BLOCKS):
            sums_k, sums_v = differentiate_block(
                sums_k, sums_v, n, place, keys, unit, ones, none, memory, M, BLOCK
            )
        # Queries came divided by BIAS_SCALE.
        k0, k1 = result_words(sums_k * BIAS_SCALE, none)
        v0, v1 = result_words(sums_v, none)
        if some_masked:
            places = mask + row * mask_r
            keep = gl.load(places + upper * mask_k, mask=upper_in, other=0.0) != 0
            k0, v0 = gl.where(keep, k0, 0), gl.where(keep, v0, 0)
            keep = gl.load(places + lower * mask_k, mask=lower_in, other=0.0) != 0
            k1, v1 = gl.where(keep, k1, 0), gl.where(keep, v1, 0)
        to = row * (slot_r // 2)
        store_words(grad_k + to, slot_at, slot_n, k0, k1, upper_in, lower_in)
        store_words(grad_v + to, slot_at, slot_n, v0, v1, upper_in, lower_in)
    async_copy.wait_group(0)
