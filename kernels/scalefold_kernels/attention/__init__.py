"""Attention: gated, with mask and pair bias; of positions to a few keys there; global."""

from scalefold_kernels.attention.op import attention
from scalefold_kernels.attention.pointwise import pointwise_attention
from scalefold_kernels.attention.pooled import global_attention

__all__ = ["attention", "global_attention", "pointwise_attention"]
