"""From the MSA representation to the operands of the outer product mean."""

from scalefold_kernels.ops.outer_product.operands.op import outer_product_operands

__all__ = ["outer_product_operands"]
