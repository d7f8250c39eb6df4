"""Triangle multiplication in Triton, for any GPU, type and size."""

from scalefold_kernels.ops.triangle.triton.output import empty_mask, output_backward, output_forward
from scalefold_kernels.ops.triangle.triton.projection import projection_backward, projection_forward

__all__ = [
    "empty_mask",
    "output_backward",
    "output_forward",
    "projection_backward",
    "projection_forward",
]
