"""Attention on any GPU, of any type, head size and length."""

from scalefold_kernels.ops.attention.triton.backward import backward as backward
from scalefold_kernels.ops.attention.triton.forward import forward as forward
