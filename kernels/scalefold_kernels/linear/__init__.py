"""A linear map added to a residual, with dropout."""

from scalefold_kernels.linear.cases import compile_cases
from scalefold_kernels.linear.op import residual_linear

__all__ = ["compile_cases", "residual_linear"]
