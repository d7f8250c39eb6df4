"""Outer product mean in Triton, the outer product of some rows of residues in memory.

The products over sequences are matrix products of the library. The outer product stays in the order
[i, c, j, d] in which they leave and take it. All launches are of one sample.

Legend: I/J residues, C/D hidden channels of the first and second operand, S sequences, Z channels
of the pair representation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.limits import index, needs_int64
from scalefold_kernels.loads import load_matrix, load_vector
from scalefold_kernels.ops.outer_product import op
from scalefold_kernels.ops.outer_product.op import EPS, Factors, Gradients, Mean, split_evenly
from scalefold_kernels.packing import join


@triton.jit
def load_gradient(ptr, i, j, z, size_j, size_z):
    """Row i, a block of j; 0 outside."""
    inside = (j < size_j)[:, None] & (z < size_z)[None, :]
    return tl.load(ptr + (i * size_j + j)[:, None] * size_z + z[None, :], mask=inside, other=0.0)


@triton.jit
def outer_product_projection_kernel(
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
        inside = (j < size_j)[:, None] & (k < num_k)[None, :]
        columns = (c.to(tl.int64) * size_j * size_c + d)[None, :]
        outer = tl.load(outer_rows + columns, mask=inside, other=0.0)
        weight = load_matrix(weight_ptr, z, k, z < size_z, num_k)
        total = tl.dot(outer, weight.T, total, input_precision=PRECISION)
    count = tl.load(count_ptr + i * count_stride_i + j * count_stride_j, mask=j < size_j, other=1.0)
    bias = load_vector(bias_ptr, z, size_z)
    inside = (j < size_j)[:, None] & (z < size_z)[None, :]
    start_ptrs = z_ptr + i * z_stride_i + index(j, INT64)[:, None] * z_stride_j
    start_ptrs += index(z, INT64)[None, :] * z_stride_z
    start = tl.load(start_ptrs, mask=inside, other=0.0).to(tl.float32)
    total = start + (total + bias[None, :]) / (count.to(tl.float32) + EPS)[:, None]
    tl.store(out_ptr + (i * size_j + j)[:, None] * size_z + z[None, :], total, mask=inside)


@triton.jit
def outer_product_gradient_kernel(
    grad_ptr, weight_ptr, out_ptr, size_j, size_c, size_z,
    PRECISION: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Z: tl.constexpr,
):  # fmt: skip
    """``out[i,c,j,d] = sum_z grad[i,j,z] weight[z,c,d]``; all z in one block."""
    i = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    z = tl.arange(0, BLOCK_Z)
    grad = load_gradient(grad_ptr, i, j, z, size_j, size_z)
    out_rows = out_ptr + (i * size_c * size_j + j)[:, None] * size_c
    num_k = size_c * size_c
    for start in range(0, num_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c, d = k // size_c, k % size_c
        weight = load_matrix(weight_ptr, z, k, z < size_z, num_k)
        outer = tl.dot(grad, weight, input_precision=PRECISION)
        inside = (j < size_j)[:, None] & (k < num_k)[None, :]
        columns = (c.to(tl.int64) * size_j * size_c + d)[None, :]
        tl.store(out_rows + columns, outer, mask=inside)


@triton.jit
def outer_product_weight_gradient_kernel(
    grad_ptr, outer_ptr, out_ptr, size_i, size_j, size_c, size_z, i_per_part,
    PRECISION: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Z: tl.constexpr,
):  # fmt: skip
    """Partial sums of ``sum_ij grad[i,j,z] outer[i,c,j,d]``, as (part, z, c, d)."""
    part = tl.program_id(2)
    num_k = size_c * size_c
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    z = tl.program_id(1) * BLOCK_Z + tl.arange(0, BLOCK_Z)
    outer_columns = (k // size_c).to(tl.int64) * size_j * size_c + k % size_c
    total = tl.zeros((BLOCK_Z, BLOCK_K), tl.float32)
    start = part * i_per_part
    blocks = tl.cdiv(size_j, BLOCK_J)
    last = tl.minimum(start + i_per_part, size_i)
    for step in range(start * blocks, last * blocks):
        i = tl.cast(step // blocks, tl.int64)
        j = (step % blocks) * BLOCK_J + tl.arange(0, BLOCK_J)
        grad = load_gradient(grad_ptr, i, j, z, size_j, size_z)
        inside = (j < size_j)[:, None] & (k < num_k)[None, :]
        outer_rows = outer_ptr + (i * size_c * size_j + j)[:, None] * size_c
        outer = tl.load(outer_rows + outer_columns[None, :], mask=inside, other=0.0)
        total = tl.dot(grad.T, outer, total, input_precision=PRECISION)
    at = (part.to(tl.int64) * size_z + z)[:, None] * num_k + k[None, :]
    tl.store(out_ptr + at, total, mask=(z < size_z)[:, None] & (k < num_k)[None, :])


@triton.jit
def outer_product_mean_gradient_kernel(
    grad_ptr, count_ptr, out_ptr, parts_ptr, size_j, size_z, grad_stride_i, grad_stride_j,
    grad_stride_z, count_stride_i, count_stride_j,
    EPS: tl.constexpr, INT64: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_Z: tl.constexpr,
):  # fmt: skip
    """``out[i,j,z] = grad[i,j,z] / count[i,j]``; ``parts[z] = sum_j out`` for each block of j."""
    i = tl.program_id(1).to(tl.int64)
    z = index(tl.arange(0, BLOCK_Z), INT64)
    j = (tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)).to(tl.int64)
    inside = (j < size_j)[:, None] & (z < size_z)[None, :]
    count = tl.load(count_ptr + i * count_stride_i + j * count_stride_j, mask=j < size_j, other=1.0)
    grad_rows = grad_ptr + i * grad_stride_i + j[:, None] * grad_stride_j
    grad = tl.load(grad_rows + z[None, :] * grad_stride_z, mask=inside, other=0.0)
    grad = grad.to(tl.float32) / (count.to(tl.float32) + EPS)[:, None]
    tl.store(out_ptr + (i * size_j + j)[:, None] * size_z + z[None, :], grad, mask=inside)
    part = i * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts_ptr + part * size_z + z, tl.sum(grad, axis=0), mask=z < size_z)


def forward(factors: Factors, mean: Mean, outer: Tensor | None) -> None:
    """Fill the mean of one sample; the outer product into ``outer``, if given."""
    a_ICS, b_JCS, weight = factors
    count_IJ, bias, z_IJZ, out_IJZ = mean
    a, b = a_ICS.flatten(0, 1), b_JCS.flatten(0, 1)
    size_j, size_z = count_IJ.shape[1], weight.shape[0]
    config = factors.config("outer_product_projection")
    for rows, of_a in _chunks(a_ICS, size_j):
        part = torch.mm(a[of_a], b.t(), out=outer)
        count = count_IJ[rows]
        blocks_j = triton.cdiv(size_j, config["BLOCK_J"])
        blocks_z = triton.cdiv(size_z, config["BLOCK_Z"])
        outer_product_projection_kernel[(blocks_j, len(count), blocks_z)](
            part, weight, bias, count, z_IJZ[rows], out_IJZ[rows], size_j, a_ICS.shape[1], size_z,
            *count.stride(), *z_IJZ.stride(),
            EPS=EPS, INT64=needs_int64(z_IJZ), PRECISION=precision(a.dtype), **config,
        )  # fmt: skip


def mean_gradient(grad_IJZ: Tensor, count_IJ: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the sum before the division by the count; parts of the bias's, (parts, Z)."""
    size_i, size_j, size_z = grad_IJZ.shape
    block_z = block(size_z)
    block_j = max(1, 4096 // block_z)
    blocks_j = triton.cdiv(size_j, block_j)
    out = grad_IJZ.new_empty(grad_IJZ.shape)
    parts = grad_IJZ.new_empty(size_i * blocks_j, size_z, dtype=torch.float32)
    outer_product_mean_gradient_kernel[(blocks_j, size_i)](
        grad_IJZ, count_IJ, out, parts, size_j, size_z, *grad_IJZ.stride(), *count_IJ.stride(),
        EPS=EPS, INT64=needs_int64(grad_IJZ), BLOCK_J=block_j, BLOCK_Z=block_z, num_warps=2,
    )  # fmt: skip
    return out, parts


def backward(
    grad_IJZ: Tensor,
    count_IJ: Tensor,
    factors: Factors,
    grads: tuple[Tensor, Tensor],
    outer: Tensor | None,
) -> Gradients:
    """Fill the operands' gradients of one sample; returns partial sums of the others.

    The outer product is made again unless forward kept it.
    """
    a_ICS, b_JCS, _ = factors
    a, b = a_ICS.flatten(0, 1), b_JCS.flatten(0, 1)
    grad_a, grad_b = (grad.flatten(0, 1) for grad in grads)
    grad_IJZ, bias_parts = mean_gradient(grad_IJZ, count_IJ)
    weight_parts, b_parts = [], []
    for rows, of_a in _chunks(a_ICS, len(b_JCS)):
        part = torch.mm(a[of_a], b.t()) if outer is None else outer
        weight_parts.append(_weight_gradient(grad_IJZ[rows], part, factors))
        grad_outer = _outer_gradient(grad_IJZ[rows], part, factors)
        torch.mm(grad_outer, b, out=grad_a[of_a])
        if outer is not None:
            torch.mm(grad_outer.t(), a, out=grad_b)
        else:
            b_parts.append(torch.mm(grad_outer.t(), a[of_a]))
    if b_parts:
        grad_b.copy_(torch.stack(b_parts).sum(0, dtype=torch.float32))
    return Gradients(bias_parts, join(weight_parts, 0), [])


def _chunks(a_ICS: Tensor, size_j: int) -> Iterator[tuple[slice, slice]]:
    """Rows of residues, and the rows that they are in ``a`` flattened."""
    size_i, channels, _ = a_ICS.shape
    at_once = max(1, op.MAX_ELEMENTS // (channels * channels * size_j))
    for start in range(0, size_i, at_once):
        end = min(start + at_once, size_i)
        yield slice(start, end), slice(start * channels, end * channels)


def _weight_gradient(grad_IJZ: Tensor, outer: Tensor, factors: Factors) -> Tensor:
    size_i, size_j, size_z = grad_IJZ.shape
    channels = factors.a.shape[1]
    config = factors.config("outer_product_weight_gradient")
    per_sm = config.pop("RESIDENT")
    blocks_k = triton.cdiv(channels * channels, config["BLOCK_K"])
    blocks_z = triton.cdiv(size_z, config["BLOCK_Z"])
    num_parts, rows = split_evenly(blocks_k * blocks_z, per_sm, size_i, grad_IJZ.device)
    parts = grad_IJZ.new_empty(num_parts, size_z, channels**2, dtype=torch.float32)
    outer_product_weight_gradient_kernel[(blocks_k, blocks_z, num_parts)](
        grad_IJZ, outer, parts, size_i, size_j, channels, size_z, rows,
        PRECISION=precision(grad_IJZ.dtype), **config,
    )  # fmt: skip
    return parts


def _outer_gradient(grad_IJZ: Tensor, outer: Tensor, factors: Factors) -> Tensor:
    """Gradient in new memory, laid out as ``outer``, which a second backward may need."""
    out = torch.empty_like(outer)
    size_i, size_j, size_z = grad_IJZ.shape
    config = factors.config("outer_product_gradient")
    outer_product_gradient_kernel[(triton.cdiv(size_j, config["BLOCK_J"]), size_i)](
        grad_IJZ, factors.weight, out, size_j, factors.a.shape[1], size_z,
        PRECISION=precision(grad_IJZ.dtype), BLOCK_Z=block(size_z), **config,
    )  # fmt: skip
    return out
