"""Linear layers of float32 tensors with few rows, on tensor cores."""

from scalefold_kernels.wide_linear.op import wide_linear, wide_linear_gradients

__all__ = ["wide_linear", "wide_linear_gradients"]
