"""Many sequences: the outer product of a few rows of residues at a time in memory.

The products over sequences are then most of the work, and are matrix products as they stand; the
outer product stays in the order [i, c, j, d] in which they leave and take it.
One sample at a time. Legend as in `kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
from torch import Tensor

from scalefold_kernels.outer_product.kernel import (
    outer_gradient_kernel,
    outer_weight_gradient_kernel,
    project_outer_kernel,
)
from scalefold_kernels.outer_product.launch import (
    EPS,
    Sizes,
    block,
    launch_tile,
    mean_gradient,
    num_splits,
    precision,
    total,
)

MAX_ELEMENTS = 1 << 27
"""Of the outer product in memory at a time: 256 MiB in bfloat16."""


def forward(
    a_SIC: Tensor,
    b_SJC: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_IJZ: Tensor,
    out_IJZ: Tensor,
    outer: Tensor | None,
) -> None:
    """Write the outer product mean of one sample; the outer product into ``outer``, if given."""
    a, b = a_SIC.flatten(1), b_SJC.flatten(1)
    size_j, size_z = count_IJ.shape[1], weight.shape[0]
    sizes = launch_tile("outer_product_projection", Sizes.of(a_SIC, weight), a_SIC)
    for rows, columns in _chunks(a_SIC, size_j):
        part = torch.mm(a[:, columns].t(), b, out=outer)
        count = count_IJ[rows]
        grid = (
            triton.cdiv(size_j, sizes["BLOCK_J"]),
            count.shape[0],
            triton.cdiv(size_z, sizes["BLOCK_Z"]),
        )
        project_outer_kernel[grid](
            part,
            weight,
            bias,
            count,
            z_IJZ[rows],
            out_IJZ[rows],
            size_j,
            a_SIC.shape[2],
            size_z,
            *count.stride(),
            *z_IJZ.stride(),
            EPS=EPS,
            PRECISION=precision(a),
            **sizes,
        )


def backward(
    grad_IJZ: Tensor,
    a_SIC: Tensor,
    b_SJC: Tensor,
    mask_SI: Tensor,
    mask_SJ: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    grad_a_SIC: Tensor,
    grad_b_SJC: Tensor,
    outer: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Write the operands' gradients of one sample; returns partial sums of weight's and bias's.

    The outer product is made anew unless forward kept it.

    Returns
    -------
    weight : Tensor, shape (parts, C, D, Z), float32, Z contiguous
    bias : Tensor, shape (Z,), float32
    """
    a, b = a_SIC.flatten(1), b_SJC.flatten(1)
    channels = a_SIC.shape[2]
    mask_SI, mask_SJ = (mask[..., None].to(a.dtype) for mask in (mask_SI, mask_SJ))
    grad, grad_bias = mean_gradient(grad_IJZ, count_IJ)
    weight_parts, b_parts = [], []
    for rows, columns in _chunks(a_SIC, count_IJ.shape[1]):
        a_chunk = a[:, columns]
        part = torch.mm(a_chunk.t(), b) if outer is None else outer
        weight_parts.append(_weight_gradient(grad[rows], part, a_SIC, weight))
        grad_outer = _outer_gradient(grad[rows], part, a_SIC, weight)
        grad_a = torch.mm(b, grad_outer.t()).unflatten(1, (-1, channels))
        torch.mul(grad_a, mask_SI[:, rows], out=grad_a_SIC[:, rows])
        b_parts.append(torch.mm(a_chunk, grad_outer))
    grad_b = total(b_parts).to(b.dtype).view(b_SJC.shape)
    torch.mul(grad_b, mask_SJ, out=grad_b_SJC)
    parts = weight_parts[0] if len(weight_parts) == 1 else torch.cat(weight_parts)
    return parts, grad_bias


def fits(size_i: int, size_j: int, channels: int) -> bool:
    """Whether the outer product of a sample is made at once, and may be kept for backward."""
    return size_i * size_j * channels * channels <= MAX_ELEMENTS


def _chunks(a_SIC: Tensor, size_j: int) -> Iterator[tuple[slice, slice]]:
    """Rows of residues, and the columns that they are in ``a`` flattened."""
    _, size_i, channels = a_SIC.shape
    at_once = max(1, MAX_ELEMENTS // (channels * channels * size_j))
    for start in range(0, size_i, at_once):
        end = min(start + at_once, size_i)
        yield slice(start, end), slice(start * channels, end * channels)


def _weight_gradient(grad: Tensor, outer: Tensor, a_SIC: Tensor, weight: Tensor) -> Tensor:
    size_i, size_j, size_z = grad.shape
    channels = a_SIC.shape[2]
    sizes = launch_tile("outer_product_projection_weight", Sizes.of(a_SIC, weight), a_SIC)
    per_multiprocessor = sizes.pop("RESIDENT")
    blocks = (
        triton.cdiv(channels * channels, sizes["BLOCK_K"]),
        triton.cdiv(size_z, sizes["BLOCK_Z"]),
    )
    splits = num_splits(blocks[0] * blocks[1], per_multiprocessor, size_i, grad.device)
    parts = torch.empty(
        (splits, channels, channels, size_z), dtype=torch.float32, device=grad.device
    )
    outer_weight_gradient_kernel[(*blocks, splits)](
        grad,
        outer,
        parts,
        size_i,
        size_j,
        channels,
        size_z,
        triton.cdiv(size_i, splits),
        PRECISION=precision(grad),
        **sizes,
    )
    return parts


def _outer_gradient(grad: Tensor, outer: Tensor, a_SIC: Tensor, weight: Tensor) -> Tensor:
    """As ``outer`` lies, but apart from it: what forward kept may be asked for again."""
    out = torch.empty_like(outer)
    size_i, size_j, size_z = grad.shape
    sizes = launch_tile("outer_product_projection_input", Sizes.of(a_SIC, weight), a_SIC)
    outer_gradient_kernel[(triton.cdiv(size_j, sizes["BLOCK_J"]), size_i)](
        grad,
        weight,
        out,
        size_j,
        a_SIC.shape[2],
        size_z,
        PRECISION=precision(grad),
        BLOCK_Z=block(size_z),
        **sizes,
    )
    return out
