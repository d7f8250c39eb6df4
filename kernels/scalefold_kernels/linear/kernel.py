"""A linear map, dropout and the sum with a residual in one pass; and all of its gradients in one.

Legend: R rows (positions along D2), K input channels, C output channels. Rows lie in lines: (B, D1)
lines of D2 rows. A program keeps its weights on the chip and goes through every so many-th line of
a sample at the same positions: a mask that is shared by lines is hashed once.
"""

import triton
import triton.language as tl

from scalefold_kernels.dropout.kernel import dropout_factor, mix


@triton.jit
def position(size2, BLOCK_R: tl.constexpr):
    """Sample of a program, and the first of its positions in every line."""
    blocks = tl.cdiv(size2, BLOCK_R)
    return tl.program_id(0) // blocks, (tl.program_id(0) % blocks) * BLOCK_R


@triton.jit
def hash_of(key_ptr, key_stride, sample, layer):
    """Of a sample's key and the layer, see `dropout_factor`."""
    return mix(mix(tl.load(key_ptr + sample * key_stride), tl.zeros((), tl.int32)), layer)


# One binary for all layers: a number 1 would be folded into the code.
@triton.jit(do_not_specialize=["layer"])
def residual_linear_forward_kernel(
    x_ptr, h_ptr, weight_ptr, bias_ptr, out_ptr, key_ptr, layer, threshold, scale, size1, size2,
    key_stride,
    K: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr, SHARED: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """``out = x + (h @ weight.T + bias) * factor``; without a key there is no factor.

    ``x`` and ``out`` (B, D1, D2, C), ``h`` (B, D1, D2, K), ``weight`` (C, K); all contiguous.
    """
    sample, first = position(size2, BLOCK_R)
    rows, k = tl.arange(0, BLOCK_R)[:, None], tl.arange(0, BLOCK_K)
    columns = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_r, inside_c, inside_k = first + rows < size2, columns < C, k < K
    weight = tl.load(
        weight_ptr + columns[:, None] * K + k[None, :],
        mask=inside_c[:, None] & inside_k[None, :],
        other=0.0,
    )
    bias = tl.load(bias_ptr + columns, mask=inside_c, other=0.0).to(tl.float32)[None, :]
    if key_ptr is not None:
        state = hash_of(key_ptr, key_stride, sample, layer)
        if SHARED == 1:
            factor = dropout_factor(
                state, 0, first + rows, columns[None, :], threshold, scale, DIMS, SHARED
            )
    for line in tl.range(tl.program_id(1), size1, tl.num_programs(1), num_stages=STAGES):
        start = (sample * size1 + line).to(tl.int64) * size2 + first
        at = rows * K + k[None, :]
        h = tl.load(h_ptr + start * K + at, mask=inside_r & inside_k[None, :], other=0.0)
        at = rows * C + columns[None, :]
        inside = inside_r & inside_c[None, :]
        x = tl.load(x_ptr + start * C + at, mask=inside, other=0.0)
        update = tl.dot(h, weight.T, input_precision=PRECISION) + bias
        if key_ptr is not None:
            if SHARED != 1:
                factor = dropout_factor(
                    state, line, first + rows, columns[None, :], threshold, scale, DIMS, SHARED
                )
            update *= factor
        out = x.to(tl.float32) + update
        tl.store(out_ptr + start * C + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["layer"])
def residual_linear_backward_kernel(
    grad_ptr, h_ptr, weight_ptr, grad_h_ptr, partial_ptr, key_ptr, layer, threshold, scale,
    size1, size2, key_stride,
    K: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr, SHARED: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of ``h``, weight and bias, from one pass over the result's gradient and ``h``.

    A program has all C outputs and BLOCK_K of the inputs. ``partial`` is (programs, C K + C):
    weight and bias, the sum of each program's rows in a fixed order.
    """
    sample, first = position(size2, BLOCK_R)
    rows, columns = tl.arange(0, BLOCK_R)[:, None], tl.arange(0, BLOCK_C)
    k = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside_r, inside_c, inside_k = first + rows < size2, columns < C, k < K
    weight_at = columns[:, None] * K + k[None, :]
    inside_w = inside_c[:, None] & inside_k[None, :]
    weight = tl.load(weight_ptr + weight_at, mask=inside_w, other=0.0)
    weight_sum = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
    bias_sum = tl.zeros((BLOCK_C,), tl.float32)
    if key_ptr is not None:
        state = hash_of(key_ptr, key_stride, sample, layer)
        if SHARED == 1:
            factor = dropout_factor(
                state, 0, first + rows, columns[None, :], threshold, scale, DIMS, SHARED
            )
    for line in tl.range(tl.program_id(1), size1, tl.num_programs(1), num_stages=STAGES):
        start = (sample * size1 + line).to(tl.int64) * size2 + first
        at = rows * C + columns[None, :]
        grad = tl.load(grad_ptr + start * C + at, mask=inside_r & inside_c[None, :], other=0.0)
        at = rows * K + k[None, :]
        inside = inside_r & inside_k[None, :]
        h = tl.load(h_ptr + start * K + at, mask=inside, other=0.0)
        if key_ptr is not None:
            if SHARED != 1:
                factor = dropout_factor(
                    state, line, first + rows, columns[None, :], threshold, scale, DIMS, SHARED
                )
            grad = (grad.to(tl.float32) * factor).to(h.dtype)
        bias_sum += tl.sum(grad.to(tl.float32), 0)
        grad_h = tl.dot(grad, weight, input_precision=PRECISION)
        tl.store(grad_h_ptr + start * K + at, grad_h.to(grad_h_ptr.dtype.element_ty), mask=inside)
        weight_sum = tl.dot(grad.T, h, weight_sum, input_precision=PRECISION)
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    partial = partial_ptr + program.to(tl.int64) * (C * K + C)
    tl.store(partial + weight_at, weight_sum, mask=inside_w)
    if tl.program_id(2) == 0:
        tl.store(partial + C * K + columns, bias_sum, mask=inside_c)
