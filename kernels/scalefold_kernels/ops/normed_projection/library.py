"""Layer normalisation by its kernel, projections by the library's matrix products.

For what the kernels of `triton` do not take: wide rows, float32 on GPUs and, in backward, many
outputs. There a projection of few outputs beside them is in the kernel for narrow ones.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.ops.norm import triton as norm_alone
from scalefold_kernels.ops.normed_projection.arguments import Gradients, Norm, Projections
from scalefold_kernels.ops.normed_projection.triton import backward_narrow
from scalefold_kernels.sums import column_sums


def forward(x: Tensor, norm: Norm, projections: Projections, out: Tensor, few: Tensor) -> None:
    """Fill ``out`` and the statistics; ``few`` is empty."""
    weight, (channels, outputs, first_biased, _) = projections.weight, projections.sizes
    normed, out_rows = norm_alone.forward(x, *norm).view(-1, channels), out.view(-1, outputs)
    bias = projections.bias
    if bias is None:
        torch.mm(normed, weight.t(), out=out_rows)
    else:
        bias = functional.pad(bias, (first_biased, 0)) if first_biased else bias
        torch.addmm(bias, normed, weight.t(), out=out_rows)
    if projections.first_scale != 1:
        out[..., : projections.first] *= projections.first_scale


def backward(
    grad: Tensor,
    grad_few: Tensor | None,
    x: Tensor,
    norm: Norm,
    projections: Projections,
    through: Tensor | None,
    gradients: Gradients,
) -> Tensor:
    channels, outputs, first_biased, _ = projections.sizes
    grad = grad.contiguous()
    grad_normed = grad @ projections.scaled_weight()
    of_norm, of_biases = gradients.sums.tensor_split([2 * channels])
    biased = grad.view(-1, outputs)[:, first_biased:]
    at_once = projections.few is None and len(of_biases) == channels
    if projections.few is None:
        sums, summed = (gradients.sums, biased) if at_once else (of_norm, None)
        grad_x, normed = norm_alone.backward(grad_normed, x, *norm, through, sums, summed)
    else:
        assert grad_few is not None
        few, scale = projections.few, projections.few_scale
        both = of_norm.new_empty(of_norm.numel() + few.numel())
        grad_x, normed = backward_narrow(
            grad_few, scale, grad_normed, x, norm, few, len(few), through, both
        )
        of_norm.copy_(both[: 2 * channels])
        gradients.few.copy_(both[2 * channels :].view_as(few))
    assert normed is not None
    torch.mm(grad.view(-1, outputs).t(), normed.view(-1, channels), out=gradients.weight)
    if len(of_biases) and not at_once:
        column_sums(biased, of_biases)
    gradients.scale_first(projections)
    return grad_x
