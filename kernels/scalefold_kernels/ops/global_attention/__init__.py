"""Global attention: one mean query a column of the MSA."""

from scalefold_kernels.ops.global_attention.op import global_attention as global_attention
