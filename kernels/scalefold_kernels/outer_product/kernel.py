"""Triton kernels of the outer product mean.

Legend: S sequences, I/J residues, C/D hidden channels of the first and second operand, Z channels
of the pair representation. ``outer[i,j,c,d] = sum_s a[s,i,c] b[s,j,d]`` has 67 million elements at
256 residues; with few sequences it is never written, with many it is, as [i, c, j, d]: the order in
which one matrix product leaves it.
"""

import triton
import triton.language as tl


@triton.jit
def chained_products_kernel(
    first_ptr,
    second_ptr,
    third_ptr,
    out_ptr,
    count_ptr,
    bias_ptr,
    z_ptr,
    size_x,
    size_y,
    size_m,
    size_d,
    size_n,
    size_k,
    first_stride_k,
    first_stride_x,
    first_stride_m,
    second_stride_y,
    second_stride_m,
    second_stride_d,
    third_stride_k,
    third_stride_d,
    third_stride_n,
    out_stride_split,
    out_stride_x,
    out_stride_y,
    out_stride_n,
    count_stride_x,
    count_stride_y,
    z_stride_x,
    z_stride_y,
    z_stride_n,
    k_per_split,
    EPS: tl.constexpr,
    MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """``out[x,y,n] = sum_kd (sum_m first[k,x,m] second[y,m,d]) third[k,d,n]``.

    The three products with a sum over a pair of channels or residues are all of this form:

    ==========  =  =  =  =  =  =  ======  ========  =======
    what        x  y  k  m  d  n  first   second    third
    ==========  =  =  =  =  =  =  ======  ========  =======
    forward     i  j  c  s  d  z  a       b         weight
    a's         i  c  j  z  d  s  grad    weight    b
    b's         j  d  i  z  c  s  grad    weight    a
    ==========  =  =  =  =  =  =  ======  ========  =======

    A program holds ``second`` for ``BLOCK_Y`` y, and walks along k: the inner product's result
    stays in registers, where, with y slowest among its rows, it is the outer product's operand as
    it lies. With ``MEAN`` (forward) bias, count and z take part; gradients are partial sums in
    float32, over ``k_per_split`` of k each.
    """
    block_x = tl.program_id(1)
    block_y = tl.program_id(0)
    split = tl.program_id(2)
    x = block_x * BLOCK_X + tl.arange(0, BLOCK_X)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    columns = tl.arange(0, BLOCK_Y * BLOCK_D)
    column_y = block_y * BLOCK_Y + columns // BLOCK_D
    column_d = columns % BLOCK_D
    second_columns = column_y.to(tl.int64) * second_stride_y + column_d * second_stride_d
    second = tl.load(
        second_ptr + m.to(tl.int64)[:, None] * second_stride_m + second_columns[None, :],
        mask=(m < size_m)[:, None] & ((column_y < size_y) & (column_d < size_d))[None, :],
        other=0.0,
    )
    x_long = x.to(tl.int64)
    first_ptrs = first_ptr + x_long[:, None] * first_stride_x + m[None, :] * first_stride_m
    third_ptrs = third_ptr + (
        d.to(tl.int64)[:, None] * third_stride_d + n.to(tl.int64)[None, :] * third_stride_n
    )
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
        z = tl.load(z_rows[:, None] + n[None, :] * z_stride_n, mask=out_mask, other=0.0)
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
    a_ptr,
    b_ptr,
    grad_ptr,
    out_ptr,
    size_s,
    size_i,
    size_j,
    size_c,
    size_z,
    a_stride_s,
    a_stride_i,
    a_stride_c,
    b_stride_s,
    b_stride_j,
    b_stride_d,
    i_per_split,
    PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_Z: tl.constexpr,
):
    """Partial sums of ``sum_ij grad[i,j,z] outer[i,j,c,d]``, as (part, d, c, z).

    A program holds b for a block of j and d, and walks along i; the block of ``outer`` goes through
    shared memory into the second product.
    """
    block_d = tl.program_id(0)
    block_j = tl.program_id(1)
    split = tl.program_id(2)
    s = tl.arange(0, BLOCK_S).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    z = tl.arange(0, BLOCK_Z)
    rows = tl.arange(0, BLOCK_D * BLOCK_J)
    row_d = block_d * BLOCK_D + rows // BLOCK_J
    row_j = block_j * BLOCK_J + rows % BLOCK_J
    row_mask = (row_j < size_j) & (row_d < size_c)
    b_rows = row_j.to(tl.int64) * b_stride_j + row_d * b_stride_d
    b = tl.load(
        b_ptr + b_rows[:, None] + s[None, :] * b_stride_s,
        mask=row_mask[:, None] & (s < size_s)[None, :],
        other=0.0,
    )
    j = block_j * BLOCK_J + tl.arange(0, BLOCK_J)
    a_ptrs = a_ptr + s[:, None] * a_stride_s + c[None, :] * a_stride_c
    a_mask = (s < size_s)[:, None] & (c < size_c)[None, :]
    grad_ptrs = grad_ptr + j[:, None] * size_z + z[None, :]
    grad_mask = (j < size_j)[:, None] & (z < size_z)[None, :]
    out = tl.zeros((BLOCK_Z, BLOCK_D * BLOCK_C), tl.float32)
    start = split * i_per_split
    for i in range(start, tl.minimum(start + i_per_split, size_i)):
        i_long = tl.cast(i, tl.int64)
        a = tl.load(a_ptrs + i_long * a_stride_i, mask=a_mask, other=0.0)
        grad = tl.load(grad_ptrs + i_long * size_j * size_z, mask=grad_mask, other=0.0)
        outer = tl.dot(b, a, input_precision=PRECISION)
        outer = outer.to(grad.dtype).reshape(BLOCK_D, BLOCK_J, BLOCK_C).permute(1, 0, 2)
        outer = outer.reshape(BLOCK_J, BLOCK_D * BLOCK_C)
        out = tl.dot(grad.T, outer, out, input_precision=PRECISION)

    columns = tl.arange(0, BLOCK_D * BLOCK_C)
    d = block_d * BLOCK_D + columns // BLOCK_C
    c = columns % BLOCK_C
    part = split.to(tl.int64) * tl.num_programs(1) + block_j
    at = ((part * size_c + d) * size_c + c) * size_z
    tl.store(
        out_ptr + at[None, :] + z[:, None],
        out,
        mask=((d < size_c) & (c < size_c))[None, :] & (z < size_z)[:, None],
    )


@triton.jit
def mask_kernel(
    x_ptr,
    mask_ptr,
    out_ptr,
    turned_ptr,
    size_s,
    size_n,
    size_c,
    x_stride_s,
    x_stride_n,
    x_stride_c,
    mask_stride_s,
    mask_stride_n,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """``out[s,n,c] = x[s,n,c] mask[s,n]``, for one n; also as ``turned[n,c,s]``, if that is there.

    Operands are read fastest with the dimension that a product sums over last.
    """
    n = tl.program_id(0).to(tl.int64)
    s = (tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    inside = (s < size_s)[:, None] & (c < size_c)[None, :]
    at = x_ptr + n * x_stride_n + s[:, None] * x_stride_s + c[None, :] * x_stride_c
    x = tl.load(at, mask=inside, other=0.0)
    mask_at = mask_ptr + s * mask_stride_s + n * mask_stride_n
    mask = tl.load(mask_at, mask=s < size_s, other=0.0)
    x *= mask.to(x.dtype)[:, None]
    tl.store(out_ptr + (s[:, None] * size_n + n) * size_c + c[None, :], x, mask=inside)
    if turned_ptr is not None:
        at = turned_ptr + (n * size_c + c)[:, None] * size_s + s[None, :]
        tl.store(at, x.T, mask=(c < size_c)[:, None] & (s < size_s)[None, :])


@triton.jit
def sum_parts_kernel(
    parts_ptr,
    out_ptr,
    mask_ptr,
    num_parts,
    size_u,
    size_v,
    parts_stride,
    parts_stride_w,
    parts_stride_u,
    out_stride_w,
    out_stride_u,
    out_stride_v,
    mask_stride_w,
    mask_stride_v,
    BLOCK_U: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """``out[w,u,v] = mask[w,v] sum_p parts[p,w,u,v]`` in the order of p; any strides and type."""
    w = tl.program_id(0).to(tl.int64)
    u = (tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)).to(tl.int64)
    v = (tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    inside = (u < size_u)[:, None] & (v < size_v)[None, :]
    parts_ptrs = parts_ptr + w * parts_stride_w + u[:, None] * parts_stride_u + v[None, :]
    total = tl.zeros((BLOCK_U, BLOCK_V), tl.float32)
    for _ in tl.range(num_parts, loop_unroll_factor=8):
        total += tl.load(parts_ptrs, mask=inside, other=0.0)
        parts_ptrs += parts_stride
    if mask_ptr is not None:
        mask_ptrs = mask_ptr + w * mask_stride_w + v * mask_stride_v
        total *= tl.load(mask_ptrs, mask=v < size_v, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + w * out_stride_w + u[:, None] * out_stride_u + v[None, :] * out_stride_v
    tl.store(out_ptrs, total, mask=inside)


@triton.jit
def mean_gradient_kernel(
    grad_ptr,
    count_ptr,
    out_ptr,
    parts_ptr,
    size_j,
    size_z,
    grad_stride_i,
    grad_stride_j,
    grad_stride_z,
    count_stride_i,
    count_stride_j,
    EPS: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_Z: tl.constexpr,
):
    """``out[i,j,z] = grad[i,j,z] / count[i,j]``; ``parts[z] = sum_j out`` for each block of j."""
    i = tl.program_id(1).to(tl.int64)
    z = tl.arange(0, BLOCK_Z)
    j = (tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)).to(tl.int64)
    inside = (j < size_j)[:, None] & (z < size_z)[None, :]
    count = tl.load(count_ptr + i * count_stride_i + j * count_stride_j, mask=j < size_j, other=1.0)
    grad = tl.load(
        grad_ptr + i * grad_stride_i + j[:, None] * grad_stride_j + z[None, :] * grad_stride_z,
        mask=inside,
        other=0.0,
    )
    grad = grad.to(tl.float32) / (count.to(tl.float32) + EPS)[:, None]
    tl.store(out_ptr + (i * size_j + j)[:, None] * size_z + z[None, :], grad, mask=inside)
    part = i * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts_ptr + part * size_z + z, tl.sum(grad, axis=0), mask=z < size_z)


@triton.jit
def project_outer_kernel(
    outer_ptr,
    weight_ptr,
    bias_ptr,
    count_ptr,
    z_ptr,
    out_ptr,
    size_j,
    size_c,
    size_z,
    count_stride_i,
    count_stride_j,
    z_stride_i,
    z_stride_j,
    z_stride_z,
    EPS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_Z: tl.constexpr,
):
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
    start_ptrs = z_ptr + i * z_stride_i + j[:, None] * z_stride_j + z[None, :] * z_stride_z
    start = tl.load(start_ptrs, mask=inside, other=0.0).to(tl.float32)
    total = start + (total + bias[None, :]) / (count.to(tl.float32) + EPS)[:, None]
    tl.store(out_ptr + (i * size_j + j)[:, None] * size_z + z[None, :], total, mask=inside)


@triton.jit
def outer_gradient_kernel(
    grad_ptr,
    weight_ptr,
    out_ptr,
    size_j,
    size_c,
    size_z,
    PRECISION: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_Z: tl.constexpr,
):
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
    grad_ptr,
    outer_ptr,
    out_ptr,
    size_i,
    size_j,
    size_c,
    size_z,
    i_per_split,
    PRECISION: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_Z: tl.constexpr,
):
    """Partial sums of ``sum_ij grad[i,j,z] outer[i,c,j,d]``, as (split, c, d, z)."""
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
    at = (split.to(tl.int64) * num_k + k)[None, :] * size_z + z[:, None]
    tl.store(out_ptr + at, total, mask=(z < size_z)[:, None] & (k < num_k)[None, :])
