"""Attention: gated, with mask and pair bias; of positions to a few keys there; global."""

from scalefold_kernels.attention.op import attention
from scalefold_kernels.attention.pointwise import pointwise_attention
from scalefold_kernels.attention.pooled import global_attention
from scalefold_kernels.compilation import CompileCase

__all__ = ["attention", "compile_cases", "global_attention", "pointwise_attention"]


def compile_cases() -> list[CompileCase]:
    """Configurations for the offline compilation."""
    # The kernels for Hopper are imported where they are needed: they are for one Triton.
    from scalefold_kernels.attention import cases
    from scalefold_kernels.attention.pointwise import cases as pointwise
    from scalefold_kernels.attention.pooled import cases as pooled

    return [*cases.compile_cases(), *pointwise.compile_cases(), *pooled.compile_cases()]
