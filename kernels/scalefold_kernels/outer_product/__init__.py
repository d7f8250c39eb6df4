"""Outer product mean, from the projected operands on."""

from scalefold_kernels.outer_product.cases import compile_cases
from scalefold_kernels.outer_product.op import outer_product_mean

__all__ = ["compile_cases", "outer_product_mean"]
