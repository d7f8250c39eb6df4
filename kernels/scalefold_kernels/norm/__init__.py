"""Layer normalisation, alone and fused with the projections that follow."""

from scalefold_kernels.norm.op import layer_norm, normed_projection

__all__ = ["layer_norm", "normed_projection"]
