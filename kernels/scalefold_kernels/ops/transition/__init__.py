"""Transition: LayerNorm, linear, ReLU, linear."""

from scalefold_kernels.ops.transition.op import transition

__all__ = ["transition"]
