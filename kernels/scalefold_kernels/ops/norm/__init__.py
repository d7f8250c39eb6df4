"""Layer normalisation alone."""

from scalefold_kernels.ops.norm.op import layer_norm

__all__ = ["layer_norm"]
