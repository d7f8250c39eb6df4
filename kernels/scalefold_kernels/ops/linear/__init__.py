"""A linear map added to a residual, with dropout."""

from scalefold_kernels.ops.linear.op import residual_linear as residual_linear
