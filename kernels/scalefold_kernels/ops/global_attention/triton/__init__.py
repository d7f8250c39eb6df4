"""Global attention on any GPU."""

from scalefold_kernels.ops.global_attention.triton.backward import backward as backward
from scalefold_kernels.ops.global_attention.triton.forward import forward as forward
