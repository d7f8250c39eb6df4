"""Transition: LayerNorm, linear, ReLU, linear."""

from scalefold_kernels.ops.transition.op import transition as transition
