"""Transition: LayerNorm, linear, ReLU, linear."""

from scalefold_kernels.transition.cases import compile_cases
from scalefold_kernels.transition.op import transition

__all__ = ["compile_cases", "transition"]
