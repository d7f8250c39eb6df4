"""Layer normalisation with the projections of its result."""

from scalefold_kernels.ops.normed_projection.op import normed_projection as normed_projection
