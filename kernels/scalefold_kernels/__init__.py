"""Triton kernels of AlphaFold2's layers, forward and backward, for any model in torch.

``from scalefold_kernels import triangle_attention``: see `scalefold_kernels.api` for all of them.
Their modules are imported when a function is first called, since Triton may be missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scalefold_kernels.api import (
        attention,
        layer_norm,
        layer_norm_projection,
        outer_product_mean,
        residual_linear,
        transition,
        triangle_attention,
        triangle_multiplication,
    )

__all__ = [
    "WITHOUT_TRITON",
    "attention",
    "layer_norm",
    "layer_norm_projection",
    "outer_product_mean",
    "residual_linear",
    "transition",
    "triangle_attention",
    "triangle_multiplication",
]

WITHOUT_TRITON: Final = (
    "the kernels need Triton, which is not installed: torch's CUDA build brings it, and `pip "
    "install triton` installs it beside the CPU build"
)
"""Message of commands in place of a traceback."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("scalefold_kernels.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
