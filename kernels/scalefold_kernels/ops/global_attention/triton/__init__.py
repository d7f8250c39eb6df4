"""Global attention on any GPU."""

from scalefold_kernels.ops.global_attention.triton.backward import backward
from scalefold_kernels.ops.global_attention.triton.forward import forward

__all__ = ["backward", "forward"]
