"""Attention by features, pairs and distances of points (Suppl. Alg. 22, lines 7-10).

Legend: B samples, I queries, J keys, H heads, C channels of a head, P points, Z channels of a pair.
Features are (B, N, H, C) and points (B, N, H, 3 P) with any strides but the last, given as rows: a
tuple of pointer and strides; logits
(B, H, I, J), their norms (B, H, I, 2), the pair's channels (B, I, J, Z) and results are contiguous.
Norms are a query's highest logit, and one over the sum of exponentials of the others' distances to
it: the logarithm of that sum would be rounded, and all weights with it.

Squared distances are |x|^2 - 2 x y + |y|^2, seen from the middle of a tile's queries, so that what
cancels is no larger than the distances that matter.
"""

import triton
import triton.language as tl

from scalefold_kernels.pointers import chosen


@triton.constexpr_function
def block(size):
    """Of a dimension of a product on tensor cores."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def load_rows(of, sample, head, rows, num_rows, WIDTH: tl.constexpr):
    """(rows, block) of a tensor (B, N, H, WIDTH), given as pointer and strides; zero outside."""
    ptr, sample_stride, row_stride, head_stride = of
    columns = tl.arange(0, block(WIDTH))
    ptr += sample.to(tl.int64) * sample_stride + head * head_stride
    places = rows[:, None] * row_stride + columns[None, :]
    inside = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(ptr + places, mask=inside, other=0.0)


@triton.jit
def store_rows(ptr, value, sample, head, rows, num_rows, num_heads, WIDTH: tl.constexpr):
    """Write (rows, block) of a contiguous tensor (B, N, H, WIDTH)."""
    columns = tl.arange(0, block(WIDTH))
    row = (sample.to(tl.int64) * num_rows + rows) * num_heads + head
    inside = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    tl.store(ptr + row[:, None] * WIDTH + columns[None, :], value, mask=inside)


@triton.jit
def middle_of(points, rows, num_rows):
    """Mean over the rows that exist; others are zero."""
    return tl.sum(points, 0) / tl.sum((rows < num_rows).to(tl.float32), 0)


@triton.jit
def product(a, b):
    """Matrix product on tensor cores to float32's precision: three products of TF32 numbers."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def forward_kernel(
    q_rows, k_rows, v_rows, x_rows, y_rows, u_rows, pair_logits_ptr, point_weight_ptr,
    logits_ptr, norms_ptr, out_ptr, out_points_ptr, num_res, scale,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, COORDINATES: tl.constexpr,
    VALUE_COORDINATES: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Logits, and what their softmax makes of the values' features and points, for some queries."""
    i = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    head, sample = tl.program_id(1), tl.program_id(2)
    q = load_rows(q_rows, sample, head, i, num_res, CHANNELS) * scale
    x = load_rows(x_rows, sample, head, i, num_res, COORDINATES)
    middle = middle_of(x, i, num_res)
    x -= middle[None, :]
    weight = tl.load(point_weight_ptr + head)
    row = (sample.to(tl.int64) * HEADS + head) * num_res + i
    highest = tl.full((BLOCK_I,), float("-inf"), tl.float32)
    mass = tl.zeros((BLOCK_I,), tl.float32)
    out = tl.zeros((BLOCK_I, block(CHANNELS)), tl.float32)
    out_points = tl.zeros((BLOCK_I, block(VALUE_COORDINATES)), tl.float32)
    for start in range(0, num_res, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        inside = (i < num_res)[:, None] & (j < num_res)[None, :]
        places = row[:, None] * num_res + j[None, :]
        logits = tl.load(pair_logits_ptr + places, mask=inside, other=0.0)
        k = load_rows(k_rows, sample, head, j, num_res, CHANNELS)
        y = load_rows(y_rows, sample, head, j, num_res, COORDINATES)
        v = load_rows(v_rows, sample, head, j, num_res, CHANNELS)
        u = load_rows(u_rows, sample, head, j, num_res, VALUE_COORDINATES)
        y -= middle[None, :]
        squares = tl.sum(x * x, 1)[:, None] + tl.sum(y * y, 1)[None, :]
        logits += product(q, tl.trans(k)) + weight * (product(x, tl.trans(y)) - 0.5 * squares)
        tl.store(logits_ptr + places, logits, mask=inside)
        logits = tl.where((j < num_res)[None, :], logits, float("-inf"))
        higher = tl.maximum(highest, tl.max(logits, 1))
        shrink = tl.exp(highest - higher)
        weights = tl.exp(logits - higher[:, None])
        mass = mass * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None] + product(weights, v)
        out_points = out_points * shrink[:, None] + product(weights, u)
        highest = higher
    inverse = tl.div_rn(tl.full((BLOCK_I,), 1.0, tl.float32), mass)
    tl.store(norms_ptr + 2 * row, highest, mask=i < num_res)
    tl.store(norms_ptr + 2 * row + 1, inverse, mask=i < num_res)
    out *= inverse[:, None]
    out_points *= inverse[:, None]
    store_rows(out_ptr, out, sample, head, i, num_res, HEADS, CHANNELS)
    store_rows(out_points_ptr, out_points, sample, head, i, num_res, HEADS, VALUE_COORDINATES)


@triton.jit
def load_weights(logits_ptr, norms_ptr, row, j, inside, num_res):
    """Weights (rows, j), zero outside, and their places; ``row`` numbers sample, head and query."""
    places = row[:, None] * num_res + j[None, :]
    logits = tl.load(logits_ptr + places, mask=inside, other=float("-inf"))
    exist = tl.max(inside.to(tl.int32), 1) > 0
    highest = tl.load(norms_ptr + 2 * row, mask=exist, other=0.0)
    inverse = tl.load(norms_ptr + 2 * row + 1, mask=exist, other=0.0)
    return tl.exp(logits - highest[:, None]) * inverse[:, None], places


@triton.jit
def pair_forward_kernel(
    logits_ptr,
    norms_ptr,
    pair_ptr,
    out_ptr,
    num_res,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    """What all heads of one query make of its pairs, (B, I, H, Z)."""
    query, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    heads, channels = tl.arange(0, block(HEADS)), tl.arange(0, block(CHANNELS))
    of_heads = (sample * HEADS + heads) * num_res + query
    row = sample * num_res + query
    out = tl.zeros((block(HEADS), block(CHANNELS)), tl.float32)
    for start in range(0, num_res, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        exist = (heads < HEADS)[:, None] & (j < num_res)[None, :]
        weights, _ = load_weights(logits_ptr, norms_ptr, of_heads, j, exist, num_res)
        inside = (j < num_res)[:, None] & (channels < CHANNELS)[None, :]
        places = (row * num_res + j)[:, None] * CHANNELS + channels[None, :]
        out += product(weights, tl.load(pair_ptr + places, mask=inside, other=0.0))
    places = (row * HEADS + heads)[:, None] * CHANNELS + channels[None, :]
    tl.store(out_ptr + places, out, mask=(heads < HEADS)[:, None] & (channels < CHANNELS)[None, :])


@triton.jit
def pair_backward_kernel(
    grad_ptr, logits_ptr, norms_ptr, pair_ptr, grad_weights_ptr, grad_pair_ptr, means_ptr,
    num_res,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Gradients of one query's pairs, if wanted, and of its weights as far as they come from them.

    ``means``: weighted means of the latter over keys, (B, H, I).
    """
    query, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    heads, channels = tl.arange(0, block(HEADS)), tl.arange(0, block(CHANNELS))
    of_heads = (sample * HEADS + heads) * num_res + query
    row = sample * num_res + query
    grad = tl.load(
        grad_ptr + (row * HEADS + heads)[:, None] * CHANNELS + channels[None, :],
        mask=(heads < HEADS)[:, None] & (channels < CHANNELS)[None, :],
        other=0.0,
    )
    means = tl.zeros((block(HEADS),), tl.float32)
    for start in range(0, num_res, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        exist = (heads < HEADS)[:, None] & (j < num_res)[None, :]
        weights, of_weights = load_weights(logits_ptr, norms_ptr, of_heads, j, exist, num_res)
        inside = (j < num_res)[:, None] & (channels < CHANNELS)[None, :]
        places = (row * num_res + j)[:, None] * CHANNELS + channels[None, :]
        pair = tl.load(pair_ptr + places, mask=inside, other=0.0)
        grad_weights = product(grad, tl.trans(pair))
        means += tl.sum(weights * grad_weights, 1)
        tl.store(grad_weights_ptr + of_weights, grad_weights, mask=exist)
        if grad_pair_ptr is not None:
            tl.store(grad_pair_ptr + places, product(tl.trans(weights), grad), mask=inside)
    tl.store(means_ptr + of_heads, means, mask=heads < HEADS)


@triton.jit
def pair_gradient_kernel(
    grads, logits, norms, grad_pair_ptr, num_res,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Gradient of BLOCK_J pairs of a query, summed over the layers that attended to them.

    ``grads`` (B, I, H, Z), ``logits``, ``norms``: tuples with a pointer for each layer.
    """
    query, sample = tl.program_id(0), tl.program_id(2).to(tl.int64)
    heads, channels = tl.arange(0, block(HEADS)), tl.arange(0, block(CHANNELS))
    j = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    of_heads = (sample * HEADS + heads) * num_res + query
    row = sample * num_res + query
    exist = (heads < HEADS)[:, None] & (j < num_res)[None, :]
    of_grad = (row * HEADS + heads)[:, None] * CHANNELS + channels[None, :]
    in_grad = (heads < HEADS)[:, None] & (channels < CHANNELS)[None, :]
    total = tl.zeros((BLOCK_J, block(CHANNELS)), tl.float32)
    for layer in range(len(grads)):
        of_layer = chosen(logits, layer), chosen(norms, layer)
        weights, _ = load_weights(*of_layer, of_heads, j, exist, num_res)
        grad = tl.load(chosen(grads, layer) + of_grad, mask=in_grad, other=0.0)
        total = tl.dot(tl.trans(weights), grad, total, input_precision="tf32x3")
    places = (row * num_res + j)[:, None] * CHANNELS + channels[None, :]
    inside = (j < num_res)[:, None] & (channels < CHANNELS)[None, :]
    tl.store(grad_pair_ptr + places, total, mask=inside)


@triton.jit
def queries_backward_kernel(
    k_rows, v_rows, x_rows, y_rows, u_rows, out_rows, out_points_rows, grad_rows,
    grad_points_rows, point_weight_ptr, logits_ptr, norms_ptr, grad_weights_ptr, means_ptr,
    grad_logits_ptr, grad_q_ptr, grad_x_ptr, grad_point_weight_ptr, num_res, scale,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, COORDINATES: tl.constexpr,
    VALUE_COORDINATES: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Gradients of logits, queries, their points, and of the points' weight, a part a program."""
    tile = tl.program_id(0)
    i = tile * BLOCK_I + tl.arange(0, BLOCK_I)
    head, sample = tl.program_id(1), tl.program_id(2)
    row = (sample.to(tl.int64) * HEADS + head) * num_res + i
    grad = load_rows(grad_rows, sample, head, i, num_res, CHANNELS)
    grad_points = load_rows(grad_points_rows, sample, head, i, num_res, VALUE_COORDINATES)
    out = load_rows(out_rows, sample, head, i, num_res, CHANNELS)
    out_points = load_rows(out_points_rows, sample, head, i, num_res, VALUE_COORDINATES)
    # What the softmax subtracts: the weighted mean of the weights' gradients.
    means = tl.load(means_ptr + row, mask=i < num_res, other=0.0)
    means += tl.sum(grad * out, 1) + tl.sum(grad_points * out_points, 1)
    x = load_rows(x_rows, sample, head, i, num_res, COORDINATES)
    middle = middle_of(x, i, num_res)
    x -= middle[None, :]
    rest = tl.zeros((BLOCK_I,), tl.float32)
    moment = tl.zeros((BLOCK_I,), tl.float32)
    grad_q = tl.zeros((BLOCK_I, block(CHANNELS)), tl.float32)
    grad_x = tl.zeros((BLOCK_I, block(COORDINATES)), tl.float32)
    for start in range(0, num_res, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        inside = (i < num_res)[:, None] & (j < num_res)[None, :]
        weights, places = load_weights(logits_ptr, norms_ptr, row, j, inside, num_res)
        grad_weights = tl.load(grad_weights_ptr + places, mask=inside, other=0.0)
        v = load_rows(v_rows, sample, head, j, num_res, CHANNELS)
        u = load_rows(u_rows, sample, head, j, num_res, VALUE_COORDINATES)
        k = load_rows(k_rows, sample, head, j, num_res, CHANNELS)
        y = load_rows(y_rows, sample, head, j, num_res, COORDINATES)
        y -= middle[None, :]
        grad_weights += product(grad, tl.trans(v)) + product(grad_points, tl.trans(u))
        grad_logits = weights * (grad_weights - means[:, None])
        tl.store(grad_logits_ptr + places, grad_logits, mask=inside)
        grad_q += product(grad_logits, k)
        grad_x += product(grad_logits, y)
        rest += tl.sum(grad_logits, 1)
        moment += tl.sum(grad_logits * tl.sum(y * y, 1)[None, :], 1)
    # Half the squared distances, by which the points' weight lowers logits.
    moment += rest * tl.sum(x * x, 1) - 2.0 * tl.sum(x * grad_x, 1)
    part = (sample * tl.num_programs(0) + tile) * HEADS + head
    tl.store(grad_point_weight_ptr + part, -0.5 * tl.sum(moment, 0))
    grad_x = (grad_x - rest[:, None] * x) * tl.load(point_weight_ptr + head)
    store_rows(grad_q_ptr, grad_q * scale, sample, head, i, num_res, HEADS, CHANNELS)
    store_rows(grad_x_ptr, grad_x, sample, head, i, num_res, HEADS, COORDINATES)


@triton.jit
def keys_backward_kernel(
    q_rows, x_rows, y_rows, grad_rows, grad_points_rows, point_weight_ptr, logits_ptr, norms_ptr,
    grad_logits_ptr, grad_k_ptr, grad_v_ptr, grad_y_ptr, grad_u_ptr, num_res, scale,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, COORDINATES: tl.constexpr,
    VALUE_COORDINATES: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values: features and points."""
    j = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    head, sample = tl.program_id(1), tl.program_id(2)
    first = (sample.to(tl.int64) * HEADS + head) * num_res
    y = load_rows(y_rows, sample, head, j, num_res, COORDINATES)
    middle = middle_of(y, j, num_res)
    y -= middle[None, :]
    rest = tl.zeros((BLOCK_J,), tl.float32)
    grad_k = tl.zeros((BLOCK_J, block(CHANNELS)), tl.float32)
    grad_v = tl.zeros((BLOCK_J, block(CHANNELS)), tl.float32)
    grad_y = tl.zeros((BLOCK_J, block(COORDINATES)), tl.float32)
    grad_u = tl.zeros((BLOCK_J, block(VALUE_COORDINATES)), tl.float32)
    for start in range(0, num_res, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        inside = (i < num_res)[:, None] & (j < num_res)[None, :]
        weights, places = load_weights(logits_ptr, norms_ptr, first + i, j, inside, num_res)
        grad_logits = tl.trans(tl.load(grad_logits_ptr + places, mask=inside, other=0.0))
        weights = tl.trans(weights)
        q = load_rows(q_rows, sample, head, i, num_res, CHANNELS)
        x = load_rows(x_rows, sample, head, i, num_res, COORDINATES)
        x -= middle[None, :]
        grad = load_rows(grad_rows, sample, head, i, num_res, CHANNELS)
        grad_points = load_rows(grad_points_rows, sample, head, i, num_res, VALUE_COORDINATES)
        grad_k += product(grad_logits, q)
        grad_y += product(grad_logits, x)
        grad_v += product(weights, grad)
        grad_u += product(weights, grad_points)
        rest += tl.sum(grad_logits, 1)
    grad_y = (grad_y - rest[:, None] * y) * tl.load(point_weight_ptr + head)
    store_rows(grad_k_ptr, grad_k * scale, sample, head, j, num_res, HEADS, CHANNELS)
    store_rows(grad_v_ptr, grad_v, sample, head, j, num_res, HEADS, CHANNELS)
    store_rows(grad_y_ptr, grad_y, sample, head, j, num_res, HEADS, COORDINATES)
    store_rows(grad_u_ptr, grad_u, sample, head, j, num_res, HEADS, VALUE_COORDINATES)
