"""Outer product mean: its operands from the MSA representation, and what is made of them."""

from scalefold_kernels.ops.outer_product.op import outer_product_mean
from scalefold_kernels.ops.outer_product.operands import outer_product_operands

__all__ = ["outer_product_mean", "outer_product_operands"]
