"""Layer normalisation, alone and fused with the projections that follow."""

from scalefold_kernels.norm.cases import compile_cases
from scalefold_kernels.norm.op import layer_norm
from scalefold_kernels.norm.projection import normed_projection

__all__ = ["compile_cases", "layer_norm", "normed_projection"]
