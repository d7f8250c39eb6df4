"""Products of float32 matrices on tensor cores, for few rows.

``tf32x3``: each operand is a sum of two TF32 numbers, and the three larger of their four products
are added up; what is lost is of the order of float32's rounding.

Legend: M rows, N columns, K summed.
"""

import triton
import triton.language as tl


@triton.jit
def product_kernel(
    a_ptr,
    passed_ptr,
    b_ptr,
    bias_ptr,
    out_ptr,
    sums_ptr,
    num_rows,
    num_columns,
    depth,
    stride_am,
    stride_ak,
    stride_pm,
    stride_pk,
    stride_bk,
    stride_bn,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A tile of ``a b``, or of one of several parts of its sum, (SPLITS, M, N).

    ``passed``: what a ReLU made; elements of ``a`` count only where it let one through.
    ``sums``: of each row of ``a``, (M,).
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    in_m, in_n = rows < num_rows, columns < num_columns
    steps = tl.cdiv(tl.cdiv(depth, SPLITS), BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sums = tl.zeros((BLOCK_M,), tl.float32)
    for step in range(steps):
        k = (split * steps + step) * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = in_m[:, None] & (k < depth)[None, :]
        places = rows[:, None] * stride_am + k[None, :] * stride_ak
        a = tl.load(a_ptr + places, mask=inside, other=0.0)
        if passed_ptr is not None:
            places = rows[:, None] * stride_pm + k[None, :] * stride_pk
            a = tl.where(tl.load(passed_ptr + places, mask=inside, other=0.0) > 0.0, a, 0.0)
        if sums_ptr is not None:
            sums += tl.sum(a, 1)
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
    if sums_ptr is not None:
        tl.store(sums_ptr + rows, sums, mask=in_m & (tl.program_id(1) == 0))


@triton.jit
def join_splits_kernel(
    parts_ptr,
    bias_ptr,
    out_ptr,
    size,
    num_columns,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the parts of a product in their order, and what ends it."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + split * size + places, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + places % num_columns, mask=inside, other=0.0)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(out_ptr + places, total, mask=inside)
