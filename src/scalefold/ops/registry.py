"""The set of operations that a model is built with.

A model instance holds one `Ops`: a frozen record of functions, handed to its modules at
construction. Blocks call ``self.ops.attention(...)`` and do not know which implementation it is.
Swapped module-level functions would be global state: two models in one process could not differ.
Flags through the forwards would make every signature grow with every kernel. Another implementation
is bound with ``dataclasses.replace(TORCH, attention=...)`` or a record of its own; state-dict keys
cannot change, since the functions take plain tensors.

`scalefold.ops.triton` makes the record that holds the kernels. It finds an operation's kernels by
its name: see `triton_ops`.
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
    """A field: its torch reference, and the name that ``training.kernels`` has for its kernels."""
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
