"""Tensors that several layers use: their gradients are added up at once.

Autograd adds each further gradient to the sum so far: of n layers, n - 1 sums are read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

Total = Callable[[Sequence[Tensor]], Tensor]


def total(gradients: Sequence[Tensor]) -> Tensor:
    """Sum, in order; to be compiled, which makes it one operation."""
    return reduce(torch.add, gradients)


def for_layers(tensors: Sequence[Tensor], num_layers: int, add: Total) -> list[list[Tensor]]:
    """The tensors once more for each layer; their gradients come back through ``add``."""
    flat = _ForLayers.apply(add, num_layers, *tensors)
    width = len(tensors)
    return [list(flat[n * width : (n + 1) * width]) for n in range(num_layers)]


class _ForLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, add: Total, num_layers: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.add, ctx.width = add, len(tensors)
        return tuple(t.view_as(t) for _ in range(num_layers) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(ctx.add(grads[n :: ctx.width]) for n in range(ctx.width))
