"""Layer normalisation alone."""

from scalefold_kernels.ops.norm.op import layer_norm as layer_norm
