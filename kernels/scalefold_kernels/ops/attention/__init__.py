"""Attention, gated, with mask and pair bias."""

from scalefold_kernels.ops.attention.op import attention as attention
