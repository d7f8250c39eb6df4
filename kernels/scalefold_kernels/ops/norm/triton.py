"""Layer normalisation on any GPU: one kernel forward, one backward; above, what other ops share.

Legend: R rows (all dimensions but the last), C channels. Statistics and sums are float32. A CTA
holds whole rows. So mean and variance are taken in two passes over registers, and no mean is so
large that digits cancel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.loads import load_vector
from scalefold_kernels.rows import rows_of
from scalefold_kernels.sums import sum_rows

EPS = tl.constexpr(1e-5)
"""The constant of `scalefold.ops.norm`."""


@triton.jit
def row_offsets(rows, geometry, ROW_DIMS: tl.constexpr):
    """Where each row starts in a tensor with up to three row dimensions of any strides."""
    if ROW_DIMS == 1:
        return rows.to(tl.int64) * geometry[4]
    size1, size2 = geometry[0], geometry[1]
    outer, inner = rows // size2, rows % size2
    offset = inner.to(tl.int64) * geometry[4]
    if ROW_DIMS == 2:
        return offset + outer.to(tl.int64) * geometry[3]
    offset += (outer % size1).to(tl.int64) * geometry[3]
    return offset + (outer // size1).to(tl.int64) * geometry[2]


@triton.jit
def elements(ptr, geometry, rows, columns, ROW_DIMS: tl.constexpr):
    """Addresses of the elements of some rows; for the strides see `rows.Rows.geometry`."""
    offsets = row_offsets(rows, geometry, ROW_DIMS)[:, None] + columns[None, :] * geometry[5]
    return ptr + offsets


@triton.jit
def load_rows(ptr, geometry, rows, columns, inside, ROW_DIMS: tl.constexpr):
    """Rows of a tensor of any strides; 0 where not ``inside``."""
    places = elements(ptr, geometry, rows, columns, ROW_DIMS)
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def standardise(x, inside_c, C: tl.constexpr, BLOCK_C: tl.constexpr):
    """Rows of mean 0 and variance 1, mean and 1 / standard deviation; x is 0 beyond C."""
    mean = tl.sum(x, 1) * (1.0 / C)
    centred = x - mean[:, None]
    if BLOCK_C != C:
        centred = tl.where(inside_c[None, :], centred, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 1) * (1.0 / C) + EPS)
    return centred * rstd[:, None], mean, rstd


@triton.jit
def standardise_again(
    x, stats_ptr, rows, num_rows, inside_c, C: tl.constexpr, BLOCK_C: tl.constexpr
):
    """``x_hat`` and ``rstd`` of `standardise` again, from the statistics that it returned."""
    mean = tl.load(stats_ptr + rows, mask=rows < num_rows, other=0.0)
    rstd = tl.load(stats_ptr + num_rows + rows, mask=rows < num_rows, other=0.0)
    x_hat = (x - mean[:, None]) * rstd[:, None]
    if BLOCK_C != C:
        x_hat = tl.where(inside_c[None, :], x_hat, 0.0)
    return x_hat, rstd


@triton.jit
def store_statistics(stats_ptr, rows, num_rows, mean, rstd):
    """Keep mean and 1 / standard deviation of each row: (2, R)."""
    tl.store(stats_ptr + rows, mean, mask=rows < num_rows)
    tl.store(stats_ptr + num_rows + rows, rstd, mask=rows < num_rows)


@triton.jit
def standardise_backward(grad, x_hat, rstd, C: tl.constexpr):
    """Gradient of a row from the gradient of its standardised values (both 0 beyond C)."""
    mean_grad = tl.sum(grad, 1) * (1.0 / C)
    mean_product = tl.sum(grad * x_hat, 1) * (1.0 / C)
    return (grad - mean_grad[:, None] - x_hat * mean_product[:, None]) * rstd[:, None]


@triton.jit
def layer_norm_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, stats_ptr, num_rows, geometry,
    C: tl.constexpr, ROW_DIMS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """``out = standardise(x) * weight + bias``, contiguous; statistics where memory is given.

    x is evicted first, so that the output stays cached for the next operation.
    """
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_C)
    inside_c = columns < C
    inside = (rows < num_rows)[:, None] & inside_c[None, :]
    places = elements(x_ptr, geometry, rows, columns, ROW_DIMS)
    x = tl.load(places, mask=inside, other=0.0, eviction_policy="evict_first")
    weight, bias = load_vector(weight_ptr, columns, C), load_vector(bias_ptr, columns, C)
    x_hat, mean, rstd = standardise(x.to(tl.float32), inside_c, C, BLOCK_C)
    if stats_ptr is not None:
        store_statistics(stats_ptr, rows, num_rows, mean, rstd)
    out = x_hat * weight[None, :] + bias[None, :]
    out_offsets = rows.to(tl.int64)[:, None] * C + columns[None, :]
    tl.store(out_ptr + out_offsets, out, mask=inside)


@triton.jit
def layer_norm_backward_kernel(
    grad_ptr, x_ptr, weight_ptr, bias_ptr, stats_ptr, through_ptr, grad_x_ptr, normed_ptr,
    summed_ptr, partial_ptr, num_rows, summed_stride, grad_geometry, geometry,
    C: tl.constexpr, GRAD_ROW_DIMS: tl.constexpr, ROW_DIMS: tl.constexpr, CTAS: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of x, and each CTA's sums for weight and bias, in a fixed order of rows.

    ``partial`` is (CTAS, 2 * C): weight, bias; with ``summed``, a matrix (R, C) with a stride,
    (CTAS, 3 * C): the sums of its columns too. Sums run in one float32 accumulator for each of
    BLOCK_R rows and are folded at the end, so that no chain of additions is longer than
    num_rows / (CTAS * BLOCK_R).
    With ``normed``, the forward's result is written again too, for the gradient of what used it;
    ``through`` (R, C) is x's gradient from elsewhere, and is added.
    """
    cta = tl.program_id(0)
    columns = tl.arange(0, BLOCK_C)
    inside_c = columns < C
    weight = load_vector(weight_ptr, columns, C)
    if normed_ptr is not None:
        bias = load_vector(bias_ptr, columns, C)
    weight_sum = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    bias_sum = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    if summed_ptr is not None:
        column_sum = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in tl.range(cta * BLOCK_R, num_rows, CTAS * BLOCK_R, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_R)
        inside = (rows < num_rows)[:, None] & inside_c[None, :]
        x = load_rows(x_ptr, geometry, rows, columns, inside, ROW_DIMS)
        grad = load_rows(grad_ptr, grad_geometry, rows, columns, inside, GRAD_ROW_DIMS)
        grad = grad.to(tl.float32)
        if summed_ptr is not None:
            offsets = rows.to(tl.int64)[:, None] * summed_stride + columns[None, :]
            column_sum += tl.load(summed_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        x = x.to(tl.float32)
        x_hat, rstd = standardise_again(x, stats_ptr, rows, num_rows, inside_c, C, BLOCK_C)
        weight_sum += grad * x_hat
        bias_sum += grad
        grad_x = standardise_backward(grad * weight[None, :], x_hat, rstd, C)
        out_offsets = rows.to(tl.int64)[:, None] * C + columns[None, :]
        if through_ptr is not None:
            grad_x += tl.load(through_ptr + out_offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x_ptr + out_offsets, grad_x, mask=inside)
        if normed_ptr is not None:
            normed = x_hat * weight[None, :] + bias[None, :]
            tl.store(normed_ptr + out_offsets, normed, mask=inside)
    partial = partial_ptr + cta * (2 if summed_ptr is None else 3) * C + columns
    tl.store(partial, tl.sum(weight_sum, 0), mask=inside_c)
    tl.store(partial + C, tl.sum(bias_sum, 0), mask=inside_c)
    if summed_ptr is not None:
        tl.store(partial + 2 * C, tl.sum(column_sum, 0), mask=inside_c)


def forward(x: Tensor, weight: Tensor, bias: Tensor, stats: Tensor | None) -> Tensor:
    """The normalised rows; fills ``stats``, if given. Parameters are contiguous."""
    out, rows, channels = x.new_empty(x.shape), rows_of(x), x.shape[-1]
    block_c = triton.next_power_of_2(channels)
    config = rows.config("layer_norm_forward")
    block_r = max(1, config.pop("ELEMENTS") // block_c)
    layer_norm_forward_kernel[(triton.cdiv(rows.num_rows, block_r),)](
        rows.tensor, weight, bias, out, stats, rows.num_rows, rows.geometry,
        C=channels, ROW_DIMS=rows.num_dims, BLOCK_R=block_r, BLOCK_C=block_c, **config,
    )  # fmt: skip
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stats: Tensor,
    through: Tensor | None,
    flat_grad: Tensor,
    summed: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradient of x, and the forward's result again if ``bias`` is given; fills ``flat_grad``.

    These are the sums for weight and bias and, where it is given, of the columns of ``summed``
    (R, C), rows of any stride: a pass over them of its own would cost twice as much.
    """
    grad_x = x.new_empty(x.shape)
    normed = None if bias is None else torch.empty_like(grad_x)
    rows, grad_rows, channels = rows_of(x), rows_of(grad), x.shape[-1]
    block_c = triton.next_power_of_2(channels)
    config = rows.config("layer_norm_backward")
    block_r = max(1, config.pop("ELEMENTS") // block_c)
    ctas = min(config.pop("CTAS"), triton.cdiv(rows.num_rows, block_r))
    partial = torch.empty(ctas, flat_grad.numel(), dtype=torch.float32, device=x.device)
    layer_norm_backward_kernel[(ctas,)](
        grad_rows.tensor, rows.tensor, weight.contiguous(),
        None if bias is None else bias.contiguous(), stats,
        None if through is None else through.contiguous(), grad_x, normed, summed, partial,
        rows.num_rows, 0 if summed is None else summed.stride(0), grad_rows.geometry, rows.geometry,
        C=channels, GRAD_ROW_DIMS=grad_rows.num_dims, ROW_DIMS=rows.num_dims, CTAS=ctas,
        BLOCK_R=block_r, BLOCK_C=block_c, **config,
    )  # fmt: skip
    sum_rows(partial, flat_grad.dtype, flat_grad)
    return grad_x, normed
