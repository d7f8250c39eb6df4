"""Gated attention with mask and pair bias."""

from scalefold_kernels.attention.op import attention
from scalefold_kernels.compilation import CompileCase

__all__ = ["attention", "compile_cases"]


def compile_cases() -> list[CompileCase]:
    """Configurations for the offline compilation."""
    # The kernels for Hopper are imported where they are needed: they are for one Triton.
    from scalefold_kernels.attention.cases import compile_cases as cases

    return cases()
