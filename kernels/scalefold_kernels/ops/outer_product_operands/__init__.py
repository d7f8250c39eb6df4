"""The operands of the outer product mean, from the MSA representation."""

from scalefold_kernels.ops.outer_product_operands.op import (
    outer_product_operands as outer_product_operands,
)
