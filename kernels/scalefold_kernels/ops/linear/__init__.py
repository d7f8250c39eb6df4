"""A linear map added to a residual, with dropout."""

from scalefold_kernels.ops.linear.op import residual_linear

__all__ = ["residual_linear"]
