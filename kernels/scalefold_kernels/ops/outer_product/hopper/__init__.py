"""Outer product mean of few sequences on Hopper GPUs (H100, H200), in Gluon."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.outer_product.hopper.chained import mean_products, operand_gradients
from scalefold_kernels.ops.outer_product.hopper.weight_gradient import weight_gradient_parts
from scalefold_kernels.ops.outer_product.op import Factors, Gradients, Mean
from scalefold_kernels.ops.outer_product.triton import mean_gradient
from scalefold_kernels.tma import VECTOR, why_unreachable

MOST = 128, 32, 128
"""Sequences, channels and pair channels that a CTA has shared memory and registers for."""


def why_not(function: str, a: Tensor, b: Tensor, weight: Tensor, *others: Tensor) -> str | None:
    """Why the kernels do not take these operands, sequences last."""
    sizes = a.shape[-1], a.shape[-2], len(weight)
    if not all(size > 0 and size % VECTOR == 0 for size in sizes):
        return f"takes sequences and channels in multiples of {VECTOR}, found {sizes}"
    if any(size > most for size, most in zip(sizes, MOST, strict=True)):
        return f"takes {MOST} sequences, channels and pair channels at most, found {sizes}"
    operands = a, b, weight, *others
    if any(x.dtype != torch.bfloat16 for x in operands):
        return f"takes bfloat16, not {a.dtype}"
    return why_unreachable(*operands)


def forward(factors: Factors, mean: Mean, outer: None) -> None:
    """Fill the mean of one sample; few sequences' ``outer`` is not kept."""
    mean_products(factors, mean)


def backward(
    grad_IJZ: Tensor, count_IJ: Tensor, factors: Factors, grads: tuple[Tensor, Tensor], outer: None
) -> Gradients:
    """Partial sums of one sample's gradients."""
    grad_IJZ, bias_parts = mean_gradient(grad_IJZ, count_IJ)
    sums = operand_gradients(grad_IJZ, factors)
    weight_parts = weight_gradient_parts(grad_IJZ, factors)
    return Gradients(bias_parts, weight_parts, list(zip(sums, grads, strict=True)))
