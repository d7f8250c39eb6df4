"""Attention by features, pairs and distances of points (Suppl. Alg. 22)."""

from scalefold_kernels.point_attention.op import point_attention, point_attention_pair_gradient

__all__ = ["point_attention", "point_attention_pair_gradient"]
