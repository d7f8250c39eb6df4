"""Attention by features, pairs and distances of points (Suppl. Alg. 22)."""

from scalefold_kernels.point_attention.cases import compile_cases
from scalefold_kernels.point_attention.op import point_attention

__all__ = ["compile_cases", "point_attention"]
