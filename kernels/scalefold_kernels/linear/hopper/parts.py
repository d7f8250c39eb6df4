"""What forward and backward share on Hopper GPUs."""

from triton.experimental import gluon

from scalefold_kernels.dropout.kernel import UNIFORM_MASK


@gluon.jit
def kept(state, threshold):
    """Whether an update is kept, of the hashes of its coordinates."""
    return ((state >> 40) & UNIFORM_MASK) >= threshold
