"""Triton kernels of the optimiser step: sum of squares, and clip + Adam + averaging + copy.

Legend: P elements of a flat buffer, the first ``num_narrow`` of which may have their gradient and
their working copy in a narrow type.
"""

import triton
import triton.language as tl


@triton.jit
def load_gradient(
    narrow_ptr, wide_ptr, offsets, num_narrow, num_elements, HAS_NARROW: tl.constexpr
):
    """Gradient in float32, from the narrow buffer below ``num_narrow``, else from the wide one."""
    inside = offsets < num_elements
    if HAS_NARROW:
        is_narrow = offsets < num_narrow
        narrow = tl.load(narrow_ptr + offsets, mask=is_narrow, other=0.0).to(tl.float32)
        wide = tl.load(wide_ptr + offsets, mask=inside & (offsets >= num_narrow), other=0.0)
        return tl.where(is_narrow, narrow, wide)
    else:
        return tl.load(wide_ptr + offsets, mask=inside, other=0.0)


@triton.jit
def square_sums_kernel(
    narrow_ptr, wide_ptr, sums_ptr, updates_ptr, averaged_ptr, counts_ptr, num_narrow, num_elements,
    HAS_NARROW: tl.constexpr, ITERATIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One sum of squares a program, over ``ITERATIONS`` consecutive blocks.

    Lane by lane over the blocks, then a tree: no float32 sum here has more than a few dozen terms.
    Program 0 also copies both counters, if there are any, for `update_kernel`.
    """
    program = tl.program_id(0).to(tl.int64)
    if updates_ptr is not None:
        if program == 0:
            tl.store(counts_ptr, tl.load(updates_ptr))
            tl.store(counts_ptr + 1, tl.load(averaged_ptr))
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(ITERATIONS):
        offsets = (program * ITERATIONS + i) * BLOCK + lanes
        gradient = load_gradient(
            narrow_ptr, wide_ptr, offsets, num_narrow, num_elements, HAS_NARROW
        )
        total += gradient * gradient
    tl.store(sums_ptr + program, tl.sum(total, axis=0))


@triton.jit
def norm_of(sums_ptr, NUM_SUMS: tl.constexpr):
    """Square root of the sum of all programs' sums; the same bits in every program."""
    return tl.sqrt_rn(tl.sum(tl.load(sums_ptr + tl.arange(0, NUM_SUMS)), axis=0))


@triton.jit
def clip_factor(norm, CLIP_NORM: tl.constexpr, CLIP_EPS: tl.constexpr):
    """What a gradient of this norm is multiplied by; NaN where the norm is."""
    factor = tl.div_rn(norm * 0.0 + CLIP_NORM, norm + CLIP_EPS)
    return tl.where(factor < 1.0, factor, norm * 0.0 + 1.0)


@triton.jit
def is_finite(x):
    """Whether a float32 is neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
def accumulate_kernel(
    narrow_ptr, wide_ptr, total_ptr, sums_ptr, norm_ptr, num_narrow, num_elements,
    CLIP: tl.constexpr, CLIP_NORM: tl.constexpr, CLIP_EPS: tl.constexpr, FIRST: tl.constexpr,
    HAS_NARROW: tl.constexpr, NUM_SUMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``total += gradient``, clipped first if ``CLIP``; the first sample writes over ``total``."""
    program = tl.program_id(0).to(tl.int64)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < num_elements
    gradient = load_gradient(narrow_ptr, wide_ptr, offsets, num_narrow, num_elements, HAS_NARROW)
    if not FIRST:
        total = tl.load(total_ptr + offsets, mask=inside)
    norm = norm_of(sums_ptr, NUM_SUMS)
    if program == 0:
        tl.store(norm_ptr, norm)
    if CLIP:
        gradient *= clip_factor(norm, CLIP_NORM, CLIP_EPS)
    if not FIRST:
        gradient += total
    tl.store(total_ptr + offsets, gradient, mask=inside)


@triton.jit
def lerp(start, end, weight):
    """``torch.lerp``: exact at both ends."""
    low = start + weight * (end - start)
    high = end - (end - start) * (1.0 - weight)
    return tl.where(weight < 0.5, low, high)


@triton.jit
def power(BASE_LOG: tl.constexpr, exponent):
    """``base ** exponent`` in float64, from the base's natural logarithm."""
    return tl.exp(exponent * BASE_LOG)


@triton.jit
def update_kernel(
    weights_ptr, narrow_ptr, wide_ptr, first_moment_ptr, second_moment_ptr, average_ptr,
    working_ptr, sums_ptr, counts_ptr, rate_ptr, finite_ptr, updates_ptr, averaged_ptr, norm_ptr,
    applied_ptr, num_narrow, num_elements,
    SCALE: tl.constexpr, CLIP: tl.constexpr, CLIP_NORM: tl.constexpr, CLIP_EPS: tl.constexpr,
    LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, ONE_MINUS_BETA1: tl.constexpr,
    ONE_MINUS_BETA2: tl.constexpr, EPS: tl.constexpr, SHARE: tl.constexpr,
    FIRST_SHARE: tl.constexpr, HAS_NARROW: tl.constexpr, HAS_WORKING: tl.constexpr,
    NUM_SUMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Clip, Adam, weight average and working copy of one block; nothing if not finite.

    Scalars are worked out anew by every program, from the sums of squares and from ``counts``, a
    copy of both counters that the launch before this one made: the counters themselves are moved
    on by program 0 while others still run. Without ``CLIP`` (the samples' gradients were clipped
    one by one) ``sums`` holds the samples' norms.
    """
    program = tl.program_id(0).to(tl.int64)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < num_elements
    gradient = load_gradient(narrow_ptr, wide_ptr, offsets, num_narrow, num_elements, HAS_NARROW)
    weights = tl.load(weights_ptr + offsets, mask=inside)
    first_moment = tl.load(first_moment_ptr + offsets, mask=inside)
    second_moment = tl.load(second_moment_ptr + offsets, mask=inside)
    average = tl.load(average_ptr + offsets, mask=inside)

    # SCALE is one over the number of samples: the gradient is their sum.
    if CLIP:
        norm = norm_of(sums_ptr, NUM_SUMS) * SCALE
        factor = SCALE * clip_factor(norm, CLIP_NORM, CLIP_EPS)
    else:
        norm = tl.sum(tl.load(sums_ptr + tl.arange(0, NUM_SUMS)), axis=0) * SCALE
        factor = SCALE
    applied = is_finite(norm) & tl.load(finite_ptr)
    updates = tl.load(counts_ptr) + 1.0
    averaged = tl.load(counts_ptr + 1)
    correction1 = 1.0 - power(LOG_BETA1, updates)
    correction2 = 1.0 - power(LOG_BETA2, updates)
    step_size = (tl.load(rate_ptr) / correction1).to(tl.float32)
    correction2_root = tl.sqrt(correction2).to(tl.float32)
    share = tl.where(averaged > 0.0, SHARE, FIRST_SHARE).to(tl.float32)
    if program == 0:
        tl.store(norm_ptr, norm)
        tl.store(applied_ptr, applied)
        tl.store(updates_ptr, updates, mask=applied)
        tl.store(averaged_ptr, averaged + 1.0, mask=applied)

    gradient *= factor
    first_moment = lerp(first_moment, gradient, ONE_MINUS_BETA1)
    second_moment = lerp(second_moment, gradient * gradient, ONE_MINUS_BETA2)
    denominator = tl.div_rn(tl.sqrt_rn(second_moment), correction2_root) + EPS
    weights -= step_size * tl.div_rn(first_moment, denominator)
    average = lerp(average, weights, share)

    written = offsets < tl.where(applied, num_elements, 0)
    tl.store(weights_ptr + offsets, weights, mask=written)
    tl.store(first_moment_ptr + offsets, first_moment, mask=written)
    tl.store(second_moment_ptr + offsets, second_moment, mask=written)
    tl.store(average_ptr + offsets, average, mask=written)
    if HAS_WORKING:
        tl.store(working_ptr + offsets, weights, mask=written & (offsets < num_narrow))


@triton.jit
def copy_block(from_ptr, to_ptr, count, BLOCK: tl.constexpr):
    """``count`` elements, at most a block."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < count
    tl.store(to_ptr + lanes, tl.load(from_ptr + lanes, mask=inside), mask=inside)


@triton.jit
def gather_kernel(buffer_ptr, sources_ptr, pieces_ptr, BLOCK: tl.constexpr):
    """Copy one piece of one tensor to its place in the buffer.

    ``sources``: where each tensor is, in elements from the buffer's start; ``pieces``: tensor,
    first element in it, place in the buffer and number of elements of each program's.
    """
    piece_ptr = pieces_ptr + 4 * tl.program_id(0)
    first = tl.multiple_of(tl.load(piece_ptr + 1), BLOCK)
    target_ptr = buffer_ptr + tl.multiple_of(tl.load(piece_ptr + 2), 8)
    count = tl.load(piece_ptr + 3)
    source = tl.load(sources_ptr + tl.load(piece_ptr))
    # A gradient that is a part of another's memory may start anywhere. The count has to be a
    # multiple, too, or the mask makes the compiler copy element by element. Both are said by a
    # product: `tl.multiple_of` would hold for the value wherever it is used, here and below.
    if (source | count) % 8 == 0:
        copy_block(buffer_ptr + (source // 8 * 8 + first), target_ptr, count // 8 * 8, BLOCK)
    else:
        copy_block(buffer_ptr + (source + first), target_ptr, count, BLOCK)
