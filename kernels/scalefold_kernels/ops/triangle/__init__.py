"""Triangle multiplicative update in its three parts: projection, product, output."""

from scalefold_kernels.ops.triangle.op import triangle_output as triangle_output
from scalefold_kernels.ops.triangle.op import triangle_product_incoming as triangle_product_incoming
from scalefold_kernels.ops.triangle.op import triangle_product_outgoing as triangle_product_outgoing
from scalefold_kernels.ops.triangle.op import triangle_projection as triangle_projection
