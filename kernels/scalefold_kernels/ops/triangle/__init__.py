"""Triangle multiplicative update in its three parts: projection, product, output."""

from scalefold_kernels.ops.triangle.op import (
    triangle_output,
    triangle_product_incoming,
    triangle_product_outgoing,
    triangle_projection,
)

__all__ = [
    "triangle_output",
    "triangle_product_incoming",
    "triangle_product_outgoing",
    "triangle_projection",
]
