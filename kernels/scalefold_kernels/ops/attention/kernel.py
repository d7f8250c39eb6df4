"""Attention with mask, pair bias and gate for any GPU, head size and length.

Legend: B samples, R rows (independent attentions), Q/K query and key positions, H heads, C channels
of a head. Strides of tensors (B, R, Q or K, H, C) are those of the first four dimensions, channels
are contiguous. Statistics of the softmax are in base 2, as the hardware's exponential is:
``lse`` = log2 of the sum of exp(logits). Logits are in the bias's unit, BIAS_SCALE: queries are
divided by it when they are scaled, and the bias is added as it is. A bias in bits has
LOG2E * BIAS_SCALE == 1: nothing is multiplied.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

MASKED_LOGIT = tl.constexpr(-1e9)
"""Added to the logits of masked keys; keys beyond the last get minus infinity."""


@triton.jit
def place_of_program(num_rows, num_heads, BLOCK: tl.constexpr):
    """Sample, row, head and first position. Rows that share a bias come together."""
    row = tl.program_id(0) % num_rows
    head = tl.program_id(0) // num_rows % num_heads
    return tl.program_id(1), row, head, tl.program_id(0) // (num_rows * num_heads) * BLOCK


@triton.jit
def row_offset(strides, batch, row, head):
    """Where (batch, row, :, head, :) starts."""
    return batch.to(tl.int64) * strides[0] + row.to(tl.int64) * strides[1] + head * strides[3]


@triton.jit
def place_operands(q, k, v, q_strides, k_strides, v_strides, batch, row, head):
    """Where queries, keys and values of a row and head start."""
    q += row_offset(q_strides, batch, row, head)
    k += row_offset(k_strides, batch, row, head)
    v += row_offset(v_strides, batch, row, head)
    return q, k, v


@triton.jit
def positions(pointer, stride, first, count, C: tl.constexpr, BLOCK: tl.constexpr):
    """Addresses (BLOCK, C) of consecutive positions, and which of them exist."""
    BLOCK_C: tl.constexpr = max(16, triton.next_power_of_2(C))
    n = first + tl.arange(0, BLOCK)
    c = tl.arange(0, BLOCK_C)
    inside = (n[:, None] < count) & (c[None, :] < C)
    return pointer + n[:, None].to(tl.int64) * stride + c[None, :], inside


@triton.jit
def line_start(strides, batch, row, query):
    """Offset of a query's channels, which lie side by side, head by head."""
    start = batch.to(tl.int64) * strides[0] + row.to(tl.int64) * strides[1]
    return start + query.to(tl.int64) * strides[2]


@triton.jit
def load(pointer, stride, first, count, C: tl.constexpr, BLOCK: tl.constexpr):
    """Tile (BLOCK, C padded to a power of two), zero where there is nothing."""
    addresses, inside = positions(pointer, stride, first, count, C, BLOCK)
    return tl.load(addresses, mask=inside, other=0.0)


@triton.jit
def store(pointer, tile, stride, first, count, C: tl.constexpr, BLOCK: tl.constexpr):
    addresses, inside = positions(pointer, stride, first, count, C, BLOCK)
    tl.store(addresses, tile.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def load_queries(
    q, grad, lse, delta, q_stride, grad_stride, first, count, scale,
    C: tl.constexpr, BIAS_SCALE: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """A block of a row's queries, scaled; gradient of their result, and statistics.

    Beyond the last query every weight is 0.
    """
    queries = first + tl.arange(0, BLOCK_Q)
    q_tile = load(q, q_stride, first, count, C, BLOCK_Q)
    q_tile = (q_tile * (scale * (1.0 / BIAS_SCALE))).to(q_tile.dtype)
    grad_tile = load(grad, grad_stride, first, count, C, BLOCK_Q)
    lse_tile = tl.load(lse + queries, mask=queries < count, other=float("inf"))
    delta_tile = tl.load(delta + queries, mask=queries < count, other=0.0)
    return q_tile, grad_tile, lse_tile, delta_tile


@triton.jit
def load_bias(bias, strides, q, k, num_queries, num_keys):
    """Tile of the bias, float32; ``q`` and ``k`` are indices that broadcast against each other."""
    inside = (q < num_queries) & (k < num_keys)
    offsets = q.to(tl.int64) * strides[2] + k.to(tl.int64) * strides[3]
    return tl.load(bias + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def count_unmasked(mask, stride, num_keys, BLOCK: tl.constexpr):
    """Number of keys that take part in a row."""
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, num_keys, BLOCK):
        k = first + tl.arange(0, BLOCK)
        total += (tl.load(mask + k * stride, mask=k < num_keys, other=0.0) != 0).to(tl.int32)
    return tl.sum(total)


@triton.jit
def masked_terms(mask, stride, k, num_keys, unmasked):
    """What masking adds to the logits of keys ``k``.

    A row without any unmasked key attends to all alike, as it does in float32, where its logits
    vanish beside MASKED_LOGIT: they are multiplied by ``unmasked > 0`` and nothing is added.
    """
    keep = tl.load(mask + k * stride, mask=k < num_keys, other=0.0) != 0
    return tl.where(
        k < num_keys, tl.where(keep | (unmasked == 0), 0.0, MASKED_LOGIT), -float("inf")
    )


@triton.jit
def logits(
    q_tile, k_tile, queries, keys, bias, bias_strides, mask, mask_stride,
    num_queries, num_keys, unmasked, alive, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Of a block of queries, scaled, and one of keys."""
    s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
    if HAS_BIAS:
        s += load_bias(bias, bias_strides, queries[:, None], keys[None, :], num_queries, num_keys)
    return s * alive + masked_terms(mask, mask_stride, keys, num_keys, unmasked)[None, :]


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-LOG2E * x.to(tl.float32)))


@triton.jit
def forward_kernel(
    q, k, v, gate, mask, bias, out, lse,
    q_strides, k_strides, v_strides, gate_strides, mask_strides, bias_strides, out_strides,
    lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, HAS_GATE: tl.constexpr, HAS_BIAS: tl.constexpr, BIAS_SCALE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: a block of queries of one row and head."""
    batch, row, head, first_q = place_of_program(num_rows, num_heads, BLOCK_Q)
    q, k, v = place_operands(q, k, v, q_strides, k_strides, v_strides, batch, row, head)
    out += row_offset(out_strides, batch, row, head)
    mask += batch.to(tl.int64) * mask_strides[0] + row.to(tl.int64) * mask_strides[1]
    lse += ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
    unmasked = count_unmasked(mask, mask_strides[2], num_keys, BLOCK_K)
    alive = (unmasked > 0).to(tl.float32)
    queries = first_q + tl.arange(0, BLOCK_Q)
    if HAS_BIAS:
        bias += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]

    q_tile = load(q, q_strides[2], first_q, num_queries, C, BLOCK_Q)
    q_tile = (q_tile * (scale * (1.0 / BIAS_SCALE))).to(q_tile.dtype)
    highest = tl.full((BLOCK_Q,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    o = tl.zeros((BLOCK_Q, q_tile.shape[1]), tl.float32)
    for first_k in range(0, num_keys, BLOCK_K):
        keys = first_k + tl.arange(0, BLOCK_K)
        k_tile = load(k, k_strides[2], first_k, num_keys, C, BLOCK_K)
        v_tile = load(v, v_strides[2], first_k, num_keys, C, BLOCK_K)
        s = logits(
            q_tile, k_tile, queries, keys, bias, bias_strides, mask, mask_strides[2],
            num_queries, num_keys, unmasked, alive, HAS_BIAS,
        )  # fmt: skip
        new_highest = tl.maximum(highest, tl.max(s, 1) * (LOG2E * BIAS_SCALE))
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(p, 1)
        o = tl.dot(p.to(v_tile.dtype), v_tile, o * shrink[:, None], input_precision="ieee")
        highest = new_highest
    o = o / total[:, None]
    if HAS_GATE:
        gate += row_offset(gate_strides, batch, row, head)
        o *= sigmoid(load(gate, gate_strides[2], first_q, num_queries, C, BLOCK_Q))
    store(out, o, out_strides[2], first_q, num_queries, C, BLOCK_Q)
    tl.store(lse + queries, highest + tl.log2(total), mask=queries < num_queries)


@triton.jit
def backward_gate_kernel(
    gate, out, grad_out, grad_gate, grad_ungated, delta, q, scaled_q,
    gate_strides, out_strides, grad_out_strides, grad_gate_strides, grad_ungated_strides,
    q_strides, scaled_q_strides, delta_stride, num_rows, num_heads, num_queries, scale,
    C: tl.constexpr, HAS_GATE: tl.constexpr, SCALE_Q: tl.constexpr, BIAS_SCALE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Gradients of the gate and of the ungated output, and delta = sum over C of out * grad_out.

    From the gated output alone, without a division: with s = sigmoid(gate) and out = s * o,
    d gate = grad_out * o * s (1 - s) = grad_out * out * (1 - s), and the softmax's
    delta = sum(o * s * grad_out). One program: a block of queries of one row, with all their heads
    as they lie in memory; in delta queries are side by side. ``scaled_q`` gets the queries as
    forward multiplied them.
    """
    batch = tl.program_id(1)
    num_blocks = tl.cdiv(num_queries, BLOCK_Q)
    row = tl.program_id(0) // num_blocks
    queries = tl.program_id(0) % num_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    heads = tl.arange(0, BLOCK_H)
    # Heads and channels as one dimension: lanes go through the line of a query.
    PADDED: tl.constexpr = triton.next_power_of_2(C)
    at = tl.arange(0, BLOCK_H * PADDED)
    inside = at < num_heads * PADDED
    if C < PADDED:
        inside &= at % PADDED < C
        at = at // PADDED * C + at % PADDED
    query, at = queries[:, None], at[None, :]
    inside = (query < num_queries) & inside[None, :]
    offsets = line_start(out_strides, batch, row, query) + at
    o = tl.load(out + offsets, mask=inside, other=0.0)
    offsets = line_start(grad_out_strides, batch, row, query) + at
    grad = tl.load(grad_out + offsets, mask=inside, other=0.0).to(tl.float32)
    product = o.to(tl.float32) * grad
    delta += (batch * num_rows + row).to(tl.int64) * num_heads * delta_stride
    exists = (query < num_queries) & (heads[None, :] < num_heads)
    sums = tl.sum(product.reshape(BLOCK_Q, BLOCK_H, PADDED), 2)
    tl.store(delta + heads[None, :] * delta_stride + query, sums, mask=exists)
    if HAS_GATE:
        offsets = line_start(gate_strides, batch, row, query) + at
        share = sigmoid(tl.load(gate + offsets, mask=inside, other=0.0))
        grad_share = (product * (1.0 - share)).to(grad_gate.dtype.element_ty)
        offsets = line_start(grad_gate_strides, batch, row, query) + at
        tl.store(grad_gate + offsets, grad_share, mask=inside)
        grad = (grad * share).to(grad_ungated.dtype.element_ty)
        offsets = line_start(grad_ungated_strides, batch, row, query) + at
        tl.store(grad_ungated + offsets, grad, mask=inside)
    if SCALE_Q:
        offsets = line_start(q_strides, batch, row, query) + at
        scaled = tl.load(q + offsets, mask=inside, other=0.0).to(tl.float32)
        scaled *= scale * (1.0 / BIAS_SCALE)
        offsets = line_start(scaled_q_strides, batch, row, query) + at
        tl.store(scaled_q + offsets, scaled.to(scaled_q.dtype.element_ty), mask=inside)


@triton.jit
def backward_queries_kernel(
    q, k, v, mask, bias, lse, delta, grad_ungated, grad_q,
    q_strides, k_strides, v_strides, mask_strides, bias_strides, grad_ungated_strides,
    grad_q_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, HAS_BIAS: tl.constexpr, BIAS_SCALE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: gradient of a block of queries of one row and head."""
    batch, row, head, first_q = place_of_program(num_rows, num_heads, BLOCK_Q)
    q, k, v = place_operands(q, k, v, q_strides, k_strides, v_strides, batch, row, head)
    grad_ungated += row_offset(grad_ungated_strides, batch, row, head)
    grad_q += row_offset(grad_q_strides, batch, row, head)
    mask += batch.to(tl.int64) * mask_strides[0] + row.to(tl.int64) * mask_strides[1]
    start = ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
    unmasked = count_unmasked(mask, mask_strides[2], num_keys, BLOCK_K)
    alive = (unmasked > 0).to(tl.float32)
    queries = first_q + tl.arange(0, BLOCK_Q)
    if HAS_BIAS:
        bias += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]

    q_tile, grad, lse_tile, delta_tile = load_queries(
        q, grad_ungated, lse + start, delta + start, q_strides[2], grad_ungated_strides[2],
        first_q, num_queries, scale, C, BIAS_SCALE, BLOCK_Q,
    )  # fmt: skip
    total = tl.zeros((BLOCK_Q, q_tile.shape[1]), tl.float32)
    for first_k in range(0, num_keys, BLOCK_K):
        keys = first_k + tl.arange(0, BLOCK_K)
        k_tile = load(k, k_strides[2], first_k, num_keys, C, BLOCK_K)
        v_tile = load(v, v_strides[2], first_k, num_keys, C, BLOCK_K)
        s = logits(
            q_tile, k_tile, queries, keys, bias, bias_strides, mask, mask_strides[2],
            num_queries, num_keys, unmasked, alive, HAS_BIAS,
        )  # fmt: skip
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - lse_tile[:, None])
        grad_s = p * (tl.dot(grad, tl.trans(v_tile), input_precision="ieee") - delta_tile[:, None])
        total = tl.dot(grad_s.to(k_tile.dtype), k_tile, total, input_precision="ieee")
    store(grad_q, total * scale, grad_q_strides[2], first_q, num_queries, C, BLOCK_Q)


@triton.jit
def backward_keys_kernel(
    q, k, v, mask, bias, lse, delta, grad_ungated, grad_k, grad_v,
    q_strides, k_strides, v_strides, mask_strides, bias_strides, grad_ungated_strides,
    grad_k_strides, grad_v_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, HAS_BIAS: tl.constexpr, BIAS_SCALE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: gradients of a block of keys and values of one row and head.

    Logits are transposed (keys x queries), so that the weights are left operands as they come.
    """
    batch, row, head, first_k = place_of_program(num_rows, num_heads, BLOCK_K)
    q, k, v = place_operands(q, k, v, q_strides, k_strides, v_strides, batch, row, head)
    grad_ungated += row_offset(grad_ungated_strides, batch, row, head)
    grad_k += row_offset(grad_k_strides, batch, row, head)
    grad_v += row_offset(grad_v_strides, batch, row, head)
    mask += batch.to(tl.int64) * mask_strides[0] + row.to(tl.int64) * mask_strides[1]
    start = ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
    unmasked = count_unmasked(mask, mask_strides[2], num_keys, BLOCK_K)
    alive = (unmasked > 0).to(tl.float32)
    keys = first_k + tl.arange(0, BLOCK_K)
    added = masked_terms(mask, mask_strides[2], keys, num_keys, unmasked)
    if HAS_BIAS:
        bias += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]

    k_tile = load(k, k_strides[2], first_k, num_keys, C, BLOCK_K)
    v_tile = load(v, v_strides[2], first_k, num_keys, C, BLOCK_K)
    total_k = tl.zeros((BLOCK_K, k_tile.shape[1]), tl.float32)
    total_v = tl.zeros((BLOCK_K, k_tile.shape[1]), tl.float32)
    for first_q in range(0, num_queries, BLOCK_Q):
        queries = first_q + tl.arange(0, BLOCK_Q)
        q_tile, grad, lse_tile, delta_tile = load_queries(
            q, grad_ungated, lse + start, delta + start, q_strides[2], grad_ungated_strides[2],
            first_q, num_queries, scale, C, BIAS_SCALE, BLOCK_Q,
        )  # fmt: skip
        s = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
        if HAS_BIAS:
            s += load_bias(
                bias, bias_strides, queries[None, :], keys[:, None], num_queries, num_keys
            )
        s = s * alive + added[:, None]
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - lse_tile[None, :])
        total_v = tl.dot(p.to(grad.dtype), grad, total_v, input_precision="ieee")
        grad_p = tl.dot(v_tile, tl.trans(grad), input_precision="ieee")
        grad_s = (p * (grad_p - delta_tile[None, :])).to(q_tile.dtype)
        total_k = tl.dot(grad_s, q_tile, total_k, input_precision="ieee")
    # The scaled queries are divided by BIAS_SCALE.
    store(grad_k, total_k * BIAS_SCALE, grad_k_strides[2], first_k, num_keys, C, BLOCK_K)
    store(grad_v, total_v, grad_v_strides[2], first_k, num_keys, C, BLOCK_K)


@triton.jit
def backward_bias_kernel(
    q, k, v, mask, bias, lse, delta, grad_ungated, partial,
    q_strides, k_strides, v_strides, mask_strides, bias_strides, grad_ungated_strides,
    partial_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, BIAS_SCALE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one head's bias gradient, summed over ROWS rows.

    ``partial`` (groups of rows, B, H, Q, K), float32; the strides are those of the last two.
    """
    batch = tl.program_id(1)
    num_q_blocks, num_k_blocks = tl.cdiv(num_queries, BLOCK_Q), tl.cdiv(num_keys, BLOCK_K)
    first_k = tl.program_id(0) % num_k_blocks * BLOCK_K
    first_q = tl.program_id(0) // num_k_blocks % num_q_blocks * BLOCK_Q
    head = tl.program_id(0) // (num_k_blocks * num_q_blocks) % num_heads
    group = tl.program_id(0) // (num_k_blocks * num_q_blocks * num_heads)
    queries = first_q + tl.arange(0, BLOCK_Q)
    keys = first_k + tl.arange(0, BLOCK_K)
    mask += batch.to(tl.int64) * mask_strides[0]
    bias += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
    bias_tile = load_bias(
        bias, bias_strides, queries[:, None], keys[None, :], num_queries, num_keys
    )
    total = tl.zeros((BLOCK_Q, BLOCK_K), tl.float32)
    for i in range(tl.minimum(ROWS, num_rows - group * ROWS)):
        row = group * ROWS + i
        start = ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
        q_tile, grad, lse_tile, delta_tile = load_queries(
            q + row_offset(q_strides, batch, row, head),
            grad_ungated + row_offset(grad_ungated_strides, batch, row, head),
            lse + start, delta + start, q_strides[2], grad_ungated_strides[2],
            first_q, num_queries, scale, C, BIAS_SCALE, BLOCK_Q,
        )  # fmt: skip
        offset = row_offset(k_strides, batch, row, head)
        k_tile = load(k + offset, k_strides[2], first_k, num_keys, C, BLOCK_K)
        offset = row_offset(v_strides, batch, row, head)
        v_tile = load(v + offset, v_strides[2], first_k, num_keys, C, BLOCK_K)
        mask_row = mask + row.to(tl.int64) * mask_strides[1]
        unmasked = count_unmasked(mask_row, mask_strides[2], num_keys, BLOCK_K)
        added = masked_terms(mask_row, mask_strides[2], keys, num_keys, unmasked)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") + bias_tile
        s = s * (unmasked > 0).to(tl.float32) + added[None, :]
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - lse_tile[:, None])
        grad_p = tl.dot(grad, tl.trans(v_tile), input_precision="ieee")
        total += p * (grad_p - delta_tile[:, None])
    start = (group * tl.num_programs(1) + batch).to(tl.int64) * num_heads + head
    partial += start * num_queries * num_keys
    offsets = queries[:, None].to(tl.int64) * partial_strides[0]
    offsets += keys[None, :].to(tl.int64) * partial_strides[1]
    inside = (queries[:, None] < num_queries) & (keys[None, :] < num_keys)
    tl.store(partial + offsets, total * BIAS_SCALE, mask=inside)
