"""Layer normalisation, alone and fused with the projections that follow."""

from scalefold_kernels.ops.norm.op import layer_norm
from scalefold_kernels.ops.norm.projection import normed_projection

__all__ = ["layer_norm", "normed_projection"]
