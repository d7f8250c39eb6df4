"""Transition: LayerNorm, linear, ReLU, linear."""

from scalefold_kernels.transition.op import transition

__all__ = ["transition"]
