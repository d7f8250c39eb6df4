"""Attention of one query at each position to a few keys at the same position."""

from scalefold_kernels.ops.pointwise_attention.op import pointwise_attention as pointwise_attention
