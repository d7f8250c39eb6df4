"""Outer product mean of few sequences in Triton: both products are one kernel.

Legend: S sequences, I/J residues, C/D hidden channels of the first and second operand, Z channels
of the pair representation. ``outer[i,j,c,d] = sum_s a[i,c,s] b[j,d,s]`` has 67 million elements at
256 residues, and is never written here. All launches are of one sample.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.limits import index, needs_int64
from scalefold_kernels.ops.outer_product.arguments import (
    EPS,
    Chain,
    Factors,
    Gradients,
    Mean,
    Sizes,
    gradient_chains,
    launch_tile,
    mean_chain,
    num_splits,
)


def why_not(function: str, sizes: Sizes, *operands: Tensor) -> str | None:
    """Why the kernels do not take these sizes."""
    return sizes.too_large_for_chip()


@triton.jit
def chained_products_kernel(
    first_ptr, second_ptr, third_ptr, out_ptr, count_ptr, bias_ptr, z_ptr, size_x, size_y, size_m,
    size_d, size_n, size_k, first_stride_k, first_stride_x, first_stride_m, second_stride_y,
    second_stride_m, second_stride_d, third_stride_k, third_stride_d, third_stride_n,
    out_stride_split, out_stride_x, out_stride_y, out_stride_n, count_stride_x, count_stride_y,
    z_stride_x, z_stride_y, z_stride_n, k_per_split,
    EPS: tl.constexpr, MEAN: tl.constexpr, INT64: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[x,y,n] = sum_kd (sum_m first[k,x,m] second[y,m,d]) third[k,d,n]``.

    The three products with a sum over a pair of channels or residues are all of this form:

    ==========  =  =  =  =  =  =  ======  ========  =======
    what        x  y  k  m  d  n  first   second    third
    ==========  =  =  =  =  =  =  ======  ========  =======
    forward     i  j  c  s  d  z  a       b         weight
    a's         i  c  j  z  d  s  grad    weight    b
    b's         j  d  i  z  c  s  grad    weight    a
    ==========  =  =  =  =  =  =  ======  ========  =======

    A CTA holds ``second`` for ``BLOCK_Y`` y, and walks along k: the inner product's result
    stays in registers, where, with y slowest among its rows, it is the outer product's operand as
    it lies. With ``MEAN`` (forward) bias, count and z take part; gradients are partial sums in
    float32, over ``k_per_split`` of k each.
    """
    block_x, block_y, split = tl.program_id(1), tl.program_id(0), tl.program_id(2)
    x = block_x * BLOCK_X + tl.arange(0, BLOCK_X)
    m, n, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    columns = tl.arange(0, BLOCK_Y * BLOCK_D)
    column_y = block_y * BLOCK_Y + columns // BLOCK_D
    column_d = columns % BLOCK_D
    second_columns = column_y.to(tl.int64) * second_stride_y + column_d * second_stride_d
    inside = (m < size_m)[:, None] & ((column_y < size_y) & (column_d < size_d))[None, :]
    second_rows = second_ptr + m.to(tl.int64)[:, None] * second_stride_m
    second = tl.load(second_rows + second_columns[None, :], mask=inside, other=0.0)
    first_ptrs = first_ptr + x.to(tl.int64)[:, None] * first_stride_x + m[None, :] * first_stride_m
    third_rows = d.to(tl.int64)[:, None] * third_stride_d
    third_ptrs = third_ptr + (third_rows + n.to(tl.int64)[None, :] * third_stride_n)
    first_mask = (x < size_x)[:, None] & (m < size_m)[None, :]
    third_mask = (d < size_d)[:, None] & (n < size_n)[None, :]
    rows = tl.arange(0, BLOCK_Y * BLOCK_X)
    row_x = (block_x * BLOCK_X + rows % BLOCK_X).to(tl.int64)
    row_y = (block_y * BLOCK_Y + rows // BLOCK_X).to(tl.int64)
    row_inside = (row_x < size_x) & (row_y < size_y)
    out_mask = row_inside[:, None] & (n < size_n)[None, :]
    out = tl.zeros((BLOCK_Y * BLOCK_X, BLOCK_N), tl.float32)
    if MEAN:
        # All that is added to the products, before the division and before the loop.
        count_rows = count_ptr + row_x * count_stride_x + row_y * count_stride_y
        count = tl.load(count_rows, mask=row_inside, other=1.0).to(tl.float32) + EPS
        z_rows = z_ptr + row_x * z_stride_x + row_y * z_stride_y
        z_ptrs = z_rows[:, None] + index(n, INT64)[None, :] * z_stride_n
        z = tl.load(z_ptrs, mask=out_mask, other=0.0)
        bias = tl.load(bias_ptr + n, mask=n < size_n, other=0.0).to(tl.float32)
        out = z.to(tl.float32) * count[:, None] + bias[None, :]
    start = split * k_per_split
    for k in range(start, tl.minimum(start + k_per_split, size_k)):
        k_long = tl.cast(k, tl.int64)
        first = tl.load(first_ptrs + k_long * first_stride_k, mask=first_mask, other=0.0)
        third = tl.load(third_ptrs + k_long * third_stride_k, mask=third_mask, other=0.0)
        inner = tl.dot(first, second, input_precision=PRECISION)
        inner = inner.reshape(BLOCK_X, BLOCK_Y, BLOCK_D).permute(1, 0, 2)
        inner = inner.reshape(BLOCK_Y * BLOCK_X, BLOCK_D).to(third.dtype)
        out = tl.dot(inner, third, out, input_precision=PRECISION)

    if MEAN:
        out /= count[:, None]
    out_rows = split.to(tl.int64) * out_stride_split + row_x * out_stride_x + row_y * out_stride_y
    tl.store(out_ptr + out_rows[:, None] + n[None, :] * out_stride_n, out, mask=out_mask)


@triton.jit
def weight_gradient_kernel(
    a_ptr, b_ptr, grad_ptr, out_ptr, size_s, size_i, size_j, size_c, size_z, a_stride_i, a_stride_c,
    a_stride_s, b_stride_j, b_stride_d, b_stride_s, j_per_split,
    PRECISION: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_Z: tl.constexpr,
):  # fmt: skip
    """Partial sums of ``sum_ij grad[i,j,z] outer[i,j,c,d]``, as (part, z, c, d).

    A CTA holds a for a block of i and c, and walks along j; the block of ``outer`` goes through
    shared memory into the second product.
    """
    block_c, block_i, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    s, d, z = tl.arange(0, BLOCK_S).to(tl.int64), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_Z)
    rows = tl.arange(0, BLOCK_C * BLOCK_I)
    row_c = block_c * BLOCK_C + rows // BLOCK_I
    row_i = block_i * BLOCK_I + rows % BLOCK_I
    a_rows = row_i.to(tl.int64) * a_stride_i + row_c * a_stride_c
    inside = ((row_i < size_i) & (row_c < size_c))[:, None] & (s < size_s)[None, :]
    a = tl.load(a_ptr + a_rows[:, None] + s[None, :] * a_stride_s, mask=inside, other=0.0)
    i = block_i * BLOCK_I + tl.arange(0, BLOCK_I)
    b_ptrs = b_ptr + s[:, None] * b_stride_s + d[None, :] * b_stride_d
    b_mask = (s < size_s)[:, None] & (d < size_c)[None, :]
    grad_ptrs = grad_ptr + i.to(tl.int64)[:, None] * size_j * size_z + z[None, :]
    grad_mask = (i < size_i)[:, None] & (z < size_z)[None, :]
    out = tl.zeros((BLOCK_Z, BLOCK_C * BLOCK_D), tl.float32)
    start = split * j_per_split
    for j in range(start, tl.minimum(start + j_per_split, size_j)):
        b = tl.load(b_ptrs + tl.cast(j, tl.int64) * b_stride_j, mask=b_mask, other=0.0)
        grad = tl.load(grad_ptrs + j * size_z, mask=grad_mask, other=0.0)
        outer = tl.dot(a, b, input_precision=PRECISION)
        outer = outer.to(grad.dtype).reshape(BLOCK_C, BLOCK_I, BLOCK_D).permute(1, 0, 2)
        outer = outer.reshape(BLOCK_I, BLOCK_C * BLOCK_D)
        out = tl.dot(grad.T, outer, out, input_precision=PRECISION)

    columns = tl.arange(0, BLOCK_C * BLOCK_D)
    c = block_c * BLOCK_C + columns // BLOCK_D
    d = columns % BLOCK_D
    part = split.to(tl.int64) * tl.num_programs(1) + block_i
    at = (part * size_z + z)[:, None] * size_c * size_c + (c * size_c + d)[None, :]
    inside = (z < size_z)[:, None] & ((c < size_c) & (d < size_c))[None, :]
    tl.store(out_ptr + at, out, mask=inside)


@triton.jit
def mean_gradient_kernel(
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


def mean_gradient(grad_IJZ: Tensor, count_IJ: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the sum before the division by the count; parts of the bias's, (parts, Z)."""
    size_i, size_j, size_z = grad_IJZ.shape
    block_z = block(size_z)
    block_j = max(1, 4096 // block_z)
    blocks_j = triton.cdiv(size_j, block_j)
    out = grad_IJZ.new_empty(grad_IJZ.shape)
    parts = grad_IJZ.new_empty(size_i * blocks_j, size_z, dtype=torch.float32)
    mean_gradient_kernel[(blocks_j, size_i)](
        grad_IJZ, count_IJ, out, parts, size_j, size_z, *grad_IJZ.stride(), *count_IJ.stride(),
        EPS=EPS, INT64=needs_int64(grad_IJZ), BLOCK_J=block_j, BLOCK_Z=block_z, num_warps=2,
    )  # fmt: skip
    return out, parts


def forward(factors: Factors, mean: Mean, outer: Tensor | None) -> None:
    """Fill the mean of one sample; ``outer`` is None."""
    tile = launch_tile("outer_product_forward", factors.sizes, mean.z)
    _chained_products(mean_chain(factors), mean.out[None], tile, mean)


def backward(
    grad_IJZ: Tensor, factors: Factors, grads: tuple[Tensor, Tensor], outer: Tensor | None
) -> Gradients:
    """Partial sums of one sample's gradients from `mean_gradient`; ``outer`` is None."""
    sums = [_operand_gradient(c, factors.sizes) for c in gradient_chains(grad_IJZ, factors)]
    weight_sums = _weight_gradient(grad_IJZ, factors)
    return Gradients(weight_sums, list(zip(sums, grads, strict=True)))


def _weight_gradient(grad_IJZ: Tensor, factors: Factors) -> Tensor:
    """Partial sums of the weight's gradient, (parts, Z, C * C), float32."""
    a_ICS, b_JCS, _ = factors
    tile = launch_tile("outer_product_weight", factors.sizes, grad_IJZ)
    size_i, size_j, size_z = grad_IJZ.shape
    num_seq, _, channels, _ = factors.sizes
    per_sm = tile.pop("RESIDENT")
    block_d = block(channels)
    block_c = max(1, tile.pop("COLUMNS") // block_d)
    blocks_c, blocks_i = triton.cdiv(channels, block_c), triton.cdiv(size_i, tile["BLOCK_I"])
    splits = num_splits(blocks_c * blocks_i, per_sm, size_j, grad_IJZ.device)
    shape = splits * blocks_i, size_z, channels**2
    parts = grad_IJZ.new_empty(shape, dtype=torch.float32)
    weight_gradient_kernel[(blocks_c, blocks_i, splits)](
        a_ICS, b_JCS, grad_IJZ, parts, num_seq, size_i, size_j, channels, size_z, *a_ICS.stride(),
        *b_JCS.stride(), triton.cdiv(size_j, splits),
        PRECISION=precision(grad_IJZ.dtype), BLOCK_S=block(num_seq), BLOCK_C=block_c,
        BLOCK_D=block_d, BLOCK_Z=block(size_z), **tile,
    )  # fmt: skip
    return parts


def _operand_gradient(chain: Chain, sizes: Sizes) -> Tensor:
    # So that the weight is read by whole rows in both.
    chain = chain._replace(second=chain.second.contiguous())
    tile = launch_tile("outer_product_backward", sizes, chain.first)
    per_sm = tile.pop("RESIDENT")
    num_k, size_x, _ = chain.first.shape
    size_y, _, size_d = chain.second.shape
    blocks_y = triton.cdiv(size_y, max(1, tile["COLUMNS"] // block(size_d)))
    ctas = triton.cdiv(size_x, tile["BLOCK_X"]) * blocks_y
    splits = num_splits(ctas, per_sm, num_k, chain.first.device)
    shape = splits, size_x, size_y, chain.third.shape[2]
    parts = chain.first.new_empty(shape, dtype=torch.float32)
    _chained_products(chain, parts, tile)
    return parts


def _chained_products(
    chain: Chain, out_PXYN: Tensor, tile: dict[str, int], mean: Mean | None = None
) -> None:
    num_k, size_x, size_m = chain.first.shape
    size_y, _, size_d = chain.second.shape
    splits, _, _, size_n = out_PXYN.shape
    tile = dict(tile)
    block_d = block(size_d)
    block_y = max(1, tile.pop("COLUMNS") // block_d)
    grid = (triton.cdiv(size_y, block_y), triton.cdiv(size_x, tile["BLOCK_X"]), splits)
    count, bias, z, _ = mean or (None, None, None, None)
    chained_products_kernel[grid](
        *chain, out_PXYN, count, bias, z, size_x, size_y, size_m, size_d, size_n, num_k,
        *(stride for operand in chain for stride in operand.stride()), *out_PXYN.stride(),
        *((0, 0) if count is None else count.stride()), *((0, 0, 0) if z is None else z.stride()),
        triton.cdiv(num_k, splits),
        EPS=EPS, MEAN=mean is not None, INT64=needs_int64(z),
        PRECISION=precision(chain.first.dtype), BLOCK_Y=block_y, BLOCK_M=block(size_m),
        BLOCK_D=block_d, BLOCK_N=block(size_n), **tile,
    )  # fmt: skip
