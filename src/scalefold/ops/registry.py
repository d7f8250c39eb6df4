"""The set of operations that a model is built with.

A model holds one `Ops`, a frozen record of functions, and hands it to its modules. Blocks call
``self.ops.attention(...)`` and do not know which implementation it is, so that two models in one
process may differ and no forward has flags. `kernels` makes the record that holds the kernels;
``dataclasses.replace(TORCH, attention=...)`` binds another function. The functions take plain
tensors: state-dict keys do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from scalefold.ops.attention import attention
from scalefold.ops.global_attention import global_attention
from scalefold.ops.linear import residual_linear
from scalefold.ops.norm import layer_norm, normed_projection
from scalefold.ops.outer_product import outer_product_mean, outer_product_operands
from scalefold.ops.pointwise_attention import pointwise_attention
from scalefold.ops.transition import transition
from scalefold.ops.triangle import (
    triangle_output,
    triangle_product_incoming,
    triangle_product_outgoing,
    triangle_projection,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _op(reference: _Function, package: str) -> _Function:
    """A field's default; ``package`` is what ``training.kernels`` calls its kernels."""
    return field(default=reference, metadata={"package": package})


@dataclass(frozen=True)
class Ops:
    """One implementation of each fusible operation; signatures are those of the torch reference."""

    layer_norm: Callable[..., Tensor] = _op(layer_norm, "norm")
    normed_projection: Callable[..., tuple[Tensor, ...]] = _op(normed_projection, "norm")
    attention: Callable[..., Tensor] = _op(attention, "attention")
    global_attention: Callable[..., Tensor] = _op(global_attention, "attention")
    pointwise_attention: Callable[..., Tensor] = _op(pointwise_attention, "attention")
    triangle_projection: Callable[..., tuple[Tensor, ...]] = _op(triangle_projection, "triangle")
    triangle_product_outgoing: Callable[..., Tensor] = _op(triangle_product_outgoing, "triangle")
    triangle_product_incoming: Callable[..., Tensor] = _op(triangle_product_incoming, "triangle")
    triangle_output: Callable[..., Tensor] = _op(triangle_output, "triangle")
    outer_product_operands: Callable[..., tuple[Tensor, Tensor, Tensor]] = _op(
        outer_product_operands, "outer_product"
    )
    outer_product_mean: Callable[..., Tensor] = _op(outer_product_mean, "outer_product")
    transition: Callable[..., Tensor] = _op(transition, "transition")
    residual_linear: Callable[..., Tensor] = _op(residual_linear, "linear")


TORCH = Ops()
"""The reference: plain torch, any device, any floating-point type."""
