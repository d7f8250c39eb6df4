"""Sums over rows in a fixed order: a stage that leaves one row a program, and the last one.

Legend: R rows, W columns.
"""

import triton
import triton.language as tl


@triton.jit
def sum_partials_kernel(
    partial_ptr, out_ptr, num_partials, width, BLOCK_P: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Sum (num_partials, width) over its first dimension, in a fixed order."""
    sum_block(partial_ptr, out_ptr, tl.program_id(0), num_partials, width, BLOCK_P, BLOCK_W)


@triton.jit
def sum_several_kernel(
    partials, outs, num_partials, widths, ends, BLOCKS_P: tl.constexpr, BLOCKS_W: tl.constexpr
):
    """`sum_partials_kernel` of several matrices, each up to its end of the programs."""
    program = tl.program_id(0)
    for n in tl.static_range(len(BLOCKS_P)):
        start = 0 if n == 0 else ends[n - 1]
        if (program >= start) & (program < ends[n]):
            sum_block(
                partials[n], outs[n], program - start, num_partials[n], widths[n],
                BLOCKS_P[n], BLOCKS_W[n],
            )  # fmt: skip


@triton.jit
def sum_block(
    partial_ptr, out_ptr, block, num_partials, width, BLOCK_P: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Some columns of the sum."""
    columns = block * BLOCK_W + tl.arange(0, BLOCK_W)
    inside_w = columns < width
    total = tl.zeros((BLOCK_P, BLOCK_W), tl.float32)
    for start in range(0, num_partials, BLOCK_P):
        rows = start + tl.arange(0, BLOCK_P)
        inside = (rows < num_partials)[:, None] & inside_w[None, :]
        offsets = rows.to(tl.int64)[:, None] * width + columns[None, :]
        total += tl.load(partial_ptr + offsets, mask=inside, other=0.0)
    tl.store(out_ptr + columns, tl.sum(total, 0).to(out_ptr.dtype.element_ty), mask=inside_w)


@triton.jit
def column_sums_kernel(
    x_ptr,
    partial_ptr,
    num_rows,
    num_columns,
    stride,
    PROGRAMS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Each program's sums over rows, (PROGRAMS, columns), of a matrix with this row stride."""
    program = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_c = columns < num_columns
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in tl.range(program * BLOCK_R, num_rows, PROGRAMS * BLOCK_R, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_R)
        inside = (rows < num_rows)[:, None] & inside_c[None, :]
        offsets = rows.to(tl.int64)[:, None] * stride + columns[None, :]
        total += tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(partial_ptr + program * num_columns + columns, tl.sum(total, 0), mask=inside_c)
