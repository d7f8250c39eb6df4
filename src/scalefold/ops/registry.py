"""The set of operations that a model is built with.

A model instance holds one `Ops`: a frozen record of functions, handed to its modules at
construction. Blocks call ``self.ops.attention(...)`` and do not know which implementation it is.
Swapped module-level functions would be global state: two models in one process could not differ.
Flags through the forwards would make every signature grow with every kernel. Another implementation
is bound with ``dataclasses.replace(TORCH, attention=...)`` or a record of its own; state-dict keys
cannot change, since the functions take plain tensors.

`scalefold.ops.triton` makes the record that holds the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Ops:
    """One implementation of each fusible operation; signatures are those of the torch reference."""

    layer_norm: Callable[..., Tensor] = layer_norm
    normed_projection: Callable[..., tuple[Tensor, ...]] = normed_projection
    attention: Callable[..., Tensor] = attention
    global_attention: Callable[..., Tensor] = global_attention
    pointwise_attention: Callable[..., Tensor] = pointwise_attention
    triangle_projection: Callable[..., tuple[Tensor, ...]] = triangle_projection
    triangle_product_outgoing: Callable[..., Tensor] = triangle_product_outgoing
    triangle_product_incoming: Callable[..., Tensor] = triangle_product_incoming
    triangle_output: Callable[..., Tensor] = triangle_output
    outer_product_operands: Callable[..., tuple[Tensor, Tensor, Tensor]] = outer_product_operands
    outer_product_mean: Callable[..., Tensor] = outer_product_mean
    transition: Callable[..., Tensor] = transition
    residual_linear: Callable[..., Tensor] = residual_linear


TORCH = Ops()
"""The reference: plain torch, any device, any floating-point type."""
