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

from scalefold_kernels.dot import block, precision
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.outer_product.launch import (
    EPS,
    Gradients,
    Sizes,
    launch_tile,
    mean_gradient,
    num_splits,
)
from scalefold_kernels.outer_product.materialised.kernel import (
    outer_gradient_kernel,
    outer_weight_gradient_kernel,
    project_outer_kernel,
)

MAX_ELEMENTS = 1 << 27
"""Of the outer product in memory at a time: 256 MiB in bfloat16."""


def forward(
    a_ICS: Tensor,
    b_JCS: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_IJZ: Tensor,
    out_IJZ: Tensor,
    outer: Tensor | None,
) -> None:
    """Write the outer product mean of one sample; the outer product into ``outer``, if given."""
    a, b = a_ICS.flatten(0, 1), b_JCS.flatten(0, 1)
    size_j, size_z = count_IJ.shape[1], weight.shape[0]
    sizes = launch_tile("outer_product_projection", Sizes.of(a_ICS, weight), a_ICS)
    for rows, of_a in _chunks(a_ICS, size_j):
        part = torch.mm(a[of_a], b.t(), out=outer)
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
            a_ICS.shape[1],
            size_z,
            *count.stride(),
            *z_IJZ.stride(),
            EPS=EPS,
            INT64=needs_int64(z_IJZ),
            PRECISION=precision(a.dtype),
            **sizes,
        )


def backward(
    grad_IJZ: Tensor,
    a_ICS: Tensor,
    b_JCS: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    grad_a_ICS: Tensor,
    grad_b_JCS: Tensor,
    outer: Tensor | None,
) -> Gradients:
    """Write the operands' gradients of one sample; returns partial sums of the others.

    The outer product is made anew unless forward kept it.
    """
    a, b = a_ICS.flatten(0, 1), b_JCS.flatten(0, 1)
    grad_a, grad_b = grad_a_ICS.flatten(0, 1), grad_b_JCS.flatten(0, 1)
    grad, bias_parts = mean_gradient(grad_IJZ, count_IJ)
    weight_parts, b_parts = [], []
    for rows, of_a in _chunks(a_ICS, count_IJ.shape[1]):
        part = torch.mm(a[of_a], b.t()) if outer is None else outer
        weight_parts.append(_weight_gradient(grad[rows], part, a_ICS, weight))
        grad_outer = _outer_gradient(grad[rows], part, a_ICS, weight)
        torch.mm(grad_outer, b, out=grad_a[of_a])
        if outer is not None:
            torch.mm(grad_outer.t(), a, out=grad_b)
        else:
            b_parts.append(torch.mm(grad_outer.t(), a[of_a]))
    if b_parts:
        grad_b.copy_(torch.stack(b_parts).sum(0, dtype=torch.float32))
    parts = weight_parts[0] if len(weight_parts) == 1 else torch.cat(weight_parts)
    return Gradients(parts, bias_parts, [])


def fits(size_i: int, size_j: int, channels: int) -> bool:
    """Whether the outer product of a sample is made at once, and may be kept for backward."""
    return size_i * size_j * channels * channels <= MAX_ELEMENTS


def _chunks(a_ICS: Tensor, size_j: int) -> Iterator[tuple[slice, slice]]:
    """Rows of residues, and the rows that they are in ``a`` flattened."""
    size_i, channels, _ = a_ICS.shape
    at_once = max(1, MAX_ELEMENTS // (channels * channels * size_j))
    for start in range(0, size_i, at_once):
        end = min(start + at_once, size_i)
        yield slice(start, end), slice(start * channels, end * channels)


def _weight_gradient(grad: Tensor, outer: Tensor, a_ICS: Tensor, weight: Tensor) -> Tensor:
    size_i, size_j, size_z = grad.shape
    channels = a_ICS.shape[1]
    sizes = launch_tile("outer_product_projection_weight", Sizes.of(a_ICS, weight), a_ICS)
    per_multiprocessor = sizes.pop("RESIDENT")
    blocks = (
        triton.cdiv(channels * channels, sizes["BLOCK_K"]),
        triton.cdiv(size_z, sizes["BLOCK_Z"]),
    )
    splits = num_splits(blocks[0] * blocks[1], per_multiprocessor, size_i, grad.device)
    shape = splits, size_z, channels**2
    parts = torch.empty(shape, dtype=torch.float32, device=grad.device)
    outer_weight_gradient_kernel[(*blocks, splits)](
        grad,
        outer,
        parts,
        size_i,
        size_j,
        channels,
        size_z,
        triton.cdiv(size_i, splits),
        PRECISION=precision(grad.dtype),
        **sizes,
    )
    return parts


def _outer_gradient(grad: Tensor, outer: Tensor, a_ICS: Tensor, weight: Tensor) -> Tensor:
    """As ``outer`` lies, but apart from it: what forward kept may be asked for again."""
    out = torch.empty_like(outer)
    size_i, size_j, size_z = grad.shape
    sizes = launch_tile("outer_product_projection_input", Sizes.of(a_ICS, weight), a_ICS)
    outer_gradient_kernel[(triton.cdiv(size_j, sizes["BLOCK_J"]), size_i)](
        grad,
        weight,
        out,
        size_j,
        a_ICS.shape[1],
        size_z,
        PRECISION=precision(grad.dtype),
        BLOCK_Z=block(size_z),
        **sizes,
    )
    return out
