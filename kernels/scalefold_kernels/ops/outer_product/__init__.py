"""Outer product mean: the product of its operands, projected."""

from scalefold_kernels.ops.outer_product.op import outer_product_mean as outer_product_mean
