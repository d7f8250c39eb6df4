"""Dropout on a residual update, its mask a function of coordinates."""

from scalefold_kernels.dropout.cases import compile_cases
from scalefold_kernels.dropout.op import residual_dropout

__all__ = ["compile_cases", "residual_dropout"]
