"""Products of float32 matrices on tensor cores, for few rows.

``tf32x3``: each operand is a sum of two TF32 numbers, and the three larger of their four products
are added up; what is lost is of the order of float32's rounding.

Legend: M rows, N columns, K summed.
"""

import triton
import triton.language as tl

from scalefold_kernels.limits import index
from scalefold_kernels.pointers import chosen


@triton.jit
def product_kernel(
    a_ptr, passed_ptr, b_ptr, bias_ptr, out_ptr, num_rows, num_columns, depth, stride_am, stride_ak,
    stride_pm, stride_pk, stride_bk, stride_bn,
    HAS_BIAS: tl.constexpr, RELU: tl.constexpr, INT64: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of ``a b``, or of one of several parts of its sum, (SPLITS, M, N).

    ``passed``: what a ReLU made; elements of ``a`` count only where it let one through.
    """
    rows = index(tl.program_id(0), INT64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = index(tl.program_id(1), INT64) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = index(tl.program_id(2), INT64)
    in_m, in_n = rows < num_rows, columns < num_columns
    steps = tl.cdiv(tl.cdiv(depth, SPLITS), BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(steps):
        k = (split * steps + step) * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = in_m[:, None] & (k < depth)[None, :]
        places = rows[:, None] * stride_am + k[None, :] * stride_ak
        a = tl.load(a_ptr + places, mask=inside, other=0.0)
        if passed_ptr is not None:
            places = rows[:, None] * stride_pm + k[None, :] * stride_pk
            a = tl.where(tl.load(passed_ptr + places, mask=inside, other=0.0) > 0.0, a, 0.0)
        inside = (k < depth)[:, None] & in_n[None, :]
        places = k[:, None] * stride_bk + columns[None, :] * stride_bn
        b = tl.load(b_ptr + places, mask=inside, other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32x3")
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=in_n, other=0.0)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    places = (split * num_rows + rows)[:, None] * num_columns + columns[None, :]
    tl.store(out_ptr + places, total, mask=in_m[:, None] & in_n[None, :])


@triton.jit
def gradients_kernel(
    grads, passed, rows, weight_ptr, bias_ptr, num_rows, num_outputs, num_inputs,
    RELU: tl.constexpr, INT64: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of the weight's gradient, the rows of several uses one after the other; the bias's.

    ``grads``, ``rows``: of each use, (R, C) and (R, K), contiguous; ``passed``: what their ReLU
    made. ``weight``, ``bias``: parts of the sums over rows, (SPLITS, C, K) and (SPLITS, C).
    """
    outputs = index(tl.program_id(0), INT64) * BLOCK_M + tl.arange(0, BLOCK_M)
    inputs = index(tl.program_id(1), INT64) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = index(tl.program_id(2), INT64)
    in_m, in_n = outputs < num_outputs, inputs < num_inputs
    of_use = tl.cdiv(num_rows, BLOCK_K)
    steps = tl.cdiv(len(grads) * of_use, SPLITS)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sums = tl.zeros((BLOCK_M,), tl.float32)
    for step in range(split * steps, tl.minimum((split + 1) * steps, len(grads) * of_use)):
        use = step // of_use
        k = step % of_use * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = in_m[:, None] & (k < num_rows)[None, :]
        places = outputs[:, None] + k[None, :] * num_outputs
        a = tl.load(chosen(grads, use) + places, mask=inside, other=0.0)
        if RELU:
            let_through = tl.load(chosen(passed, use) + places, mask=inside, other=0.0) > 0.0
            a = tl.where(let_through, a, 0.0)
        sums += tl.sum(a, 1)
        inside = (k < num_rows)[:, None] & in_n[None, :]
        places = k[:, None] * num_inputs + inputs[None, :]
        b = tl.load(chosen(rows, use) + places, mask=inside, other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32x3")
    places = (split * num_outputs + outputs)[:, None] * num_inputs + inputs[None, :]
    tl.store(weight_ptr + places, total, mask=in_m[:, None] & in_n[None, :])
    first = tl.program_id(1) == 0
    tl.store(bias_ptr + split * num_outputs + outputs, sums, mask=in_m & first)


@triton.jit
def join_splits_kernel(
    parts_ptr,
    bias_ptr,
    out_ptr,
    size,
    num_columns,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    INT64: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the parts of a product in their order, and what ends it."""
    places = index(tl.program_id(0), INT64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + split * index(size, INT64) + places, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + places % num_columns, mask=inside, other=0.0)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(out_ptr + places, total, mask=inside)
