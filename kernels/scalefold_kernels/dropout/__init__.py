"""Dropout on a residual update, its mask a function of coordinates."""

from scalefold_kernels.dropout.op import residual_dropout

__all__ = ["residual_dropout"]
