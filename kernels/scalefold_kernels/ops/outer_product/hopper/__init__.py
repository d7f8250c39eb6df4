"""Outer product mean of few sequences on Hopper GPUs (H100, H200), in Gluon."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.outer_product.arguments import (
    Factors,
    Gradients,
    Mean,
    Sizes,
    gradient_chains,
    mean_chain,
)
from scalefold_kernels.ops.outer_product.hopper.chained import mean_products, operand_gradients
from scalefold_kernels.ops.outer_product.hopper.weight_gradient import weight_gradient_parts
from scalefold_kernels.tma import VECTOR, reachable


def why_not(function: str, sizes: Sizes, *operands: Tensor) -> str | None:
    """Why the kernels do not take these sizes and operands."""
    lengths = sizes.num_seq, sizes.channels, sizes.pair_channels
    if not all(size > 0 and size % VECTOR == 0 for size in lengths):
        return f"takes sequences and channels in multiples of {VECTOR}, found {lengths}"
    if any(x.dtype != torch.bfloat16 for x in operands):
        return f"takes bfloat16, not {operands[0].dtype}"
    if not all(map(reachable, operands)):
        return "TMA does not reach a tensor whose rows are not multiples of 16 bytes apart"
    return sizes.too_large_for_chip()


def forward(factors: Factors, mean: Mean, outer: Tensor | None) -> None:
    """Fill the mean of one sample; ``outer`` is None."""
    mean_products(mean_chain(factors), mean, factors.sizes)


def backward(
    grad_IJZ: Tensor, factors: Factors, grads: tuple[Tensor, Tensor], outer: Tensor | None
) -> Gradients:
    """Partial sums of one sample's gradients from `mean_gradient`; ``outer`` is None."""
    sums = operand_gradients(gradient_chains(grad_IJZ, factors), factors.sizes)
    weight_sums = weight_gradient_parts(grad_IJZ, factors)
    return Gradients(weight_sums, list(zip(sums, grads, strict=True)))
