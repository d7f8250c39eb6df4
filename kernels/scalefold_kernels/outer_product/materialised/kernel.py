"""Triton kernels for the outer product in memory, as [i, c, j, d]: as one matrix product leaves it.

Legend: I/J residues, C/D hidden channels of the first and second operand, Z channels of the pair
representation.
"""

import triton
import triton.language as tl

from scalefold_kernels.limits import index


@triton.jit
def project_outer_kernel(
    outer_ptr, weight_ptr, bias_ptr, count_ptr, z_ptr, out_ptr, size_j, size_c, size_z,
    count_stride_i, count_stride_j, z_stride_i, z_stride_j, z_stride_z,
    EPS: tl.constexpr, INT64: tl.constexpr, PRECISION: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_Z: tl.constexpr,
):  # fmt: skip
    """``out = z + (bias[z] + sum_cd outer[i,c,j,d] weight[z,c,d]) / count[i,j]``."""
    i = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    z = tl.program_id(2) * BLOCK_Z + tl.arange(0, BLOCK_Z)
    outer_rows = outer_ptr + (i * size_c * size_j + j)[:, None] * size_c
    total = tl.zeros((BLOCK_J, BLOCK_Z), tl.float32)
    num_k = size_c * size_c
    for start in range(0, num_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c, d = k // size_c, k % size_c
        outer = tl.load(
            outer_rows + (c.to(tl.int64) * size_j * size_c + d)[None, :],
            mask=(j < size_j)[:, None] & (k < num_k)[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + z[:, None] * num_k + k[None, :],
            mask=(z < size_z)[:, None] & (k < num_k)[None, :],
            other=0.0,
        )
        total = tl.dot(outer, weight.T, total, input_precision=PRECISION)
    count = tl.load(count_ptr + i * count_stride_i + j * count_stride_j, mask=j < size_j, other=1.0)
    bias = tl.load(bias_ptr + z, mask=z < size_z, other=0.0).to(tl.float32)
    inside = (j < size_j)[:, None] & (z < size_z)[None, :]
    start_ptrs = z_ptr + i * z_stride_i + index(j, INT64)[:, None] * z_stride_j
    start_ptrs += index(z, INT64)[None, :] * z_stride_z
    start = tl.load(start_ptrs, mask=inside, other=0.0).to(tl.float32)
    total = start + (total + bias[None, :]) / (count.to(tl.float32) + EPS)[:, None]
    tl.store(out_ptr + (i * size_j + j)[:, None] * size_z + z[None, :], total, mask=inside)


@triton.jit
def outer_gradient_kernel(
    grad_ptr, weight_ptr, out_ptr, size_j, size_c, size_z,
    PRECISION: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Z: tl.constexpr,
):  # fmt: skip
    """``out[i,c,j,d] = sum_z grad[i,j,z] weight[z,c,d]``; all z in one block."""
    i = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    z = tl.arange(0, BLOCK_Z)
    grad = tl.load(
        grad_ptr + (i * size_j + j)[:, None] * size_z + z[None, :],
        mask=(j < size_j)[:, None] & (z < size_z)[None, :],
        other=0.0,
    )
    out_rows = out_ptr + (i * size_c * size_j + j)[:, None] * size_c
    num_k = size_c * size_c
    for start in range(0, num_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c, d = k // size_c, k % size_c
        weight = tl.load(
            weight_ptr + z[:, None] * num_k + k[None, :],
            mask=(z < size_z)[:, None] & (k < num_k)[None, :],
            other=0.0,
        )
        outer = tl.dot(grad, weight, input_precision=PRECISION)
        tl.store(
            out_rows + (c.to(tl.int64) * size_j * size_c + d)[None, :],
            outer,
            mask=(j < size_j)[:, None] & (k < num_k)[None, :],
        )


@triton.jit
def outer_weight_gradient_kernel(
    grad_ptr, outer_ptr, out_ptr, size_i, size_j, size_c, size_z, i_per_split,
    PRECISION: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Z: tl.constexpr,
):  # fmt: skip
    """Partial sums of ``sum_ij grad[i,j,z] outer[i,c,j,d]``, as (split, z, c, d)."""
    split = tl.program_id(2)
    num_k = size_c * size_c
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    z = tl.program_id(1) * BLOCK_Z + tl.arange(0, BLOCK_Z)
    outer_columns = (k // size_c).to(tl.int64) * size_j * size_c + k % size_c
    total = tl.zeros((BLOCK_Z, BLOCK_K), tl.float32)
    start = split * i_per_split
    blocks = tl.cdiv(size_j, BLOCK_J)
    last = tl.minimum(start + i_per_split, size_i)
    for step in range(start * blocks, last * blocks):
        i = tl.cast(step // blocks, tl.int64)
        j = (step % blocks) * BLOCK_J + tl.arange(0, BLOCK_J)
        grad = tl.load(
            grad_ptr + (i * size_j + j)[:, None] * size_z + z[None, :],
            mask=(j < size_j)[:, None] & (z < size_z)[None, :],
            other=0.0,
        )
        outer = tl.load(
            outer_ptr + (i * size_c * size_j + j)[:, None] * size_c + outer_columns[None, :],
            mask=(j < size_j)[:, None] & (k < num_k)[None, :],
            other=0.0,
        )
        total = tl.dot(grad.T, outer, total, input_precision=PRECISION)
    at = (split.to(tl.int64) * size_z + z)[:, None] * num_k + k[None, :]
    tl.store(out_ptr + at, total, mask=(z < size_z)[:, None] & (k < num_k)[None, :])
