"""Gradients of what several layers share, made at once from what each of them leaves.

Autograd would make a gradient in each layer, and add them up one by one. Here a layer takes what is
shared without a gradient, and what its gradient is made of comes back, as gradients of tensors that
hold nothing, to where it went out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Collect = Callable[..., tuple[Tensor, ...]]
"""From what all layers left, a list for each trace, gradients of the tensors that they share."""


def traces_of_layers(
    collect: Collect, shapes: Sequence[Sequence[int]], count: int, *tensors: Tensor
) -> list[tuple[Tensor, ...]]:
    """For each of so many layers a tensor of each shape, for `traced`; their values mean nothing.

    ``tensors`` are what the layers share: their gradients are what ``collect`` makes.
    """
    flat, width = _OfLayers.apply(collect, shapes, count, *tensors), len(shapes)
    return [flat[n * width : (n + 1) * width] for n in range(count)]


def traced(out: Tensor, kept: Sequence[Tensor], traces: Sequence[Tensor]) -> Tensor:
    """The result ``out``, whose gradient comes back with what a layer ``kept``, in this order."""
    result: Tensor = _Traced.apply(out, len(kept), *kept, *traces)
    return result


class _Traced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[:count])
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        return grad, None, *(None for _ in kept), *kept, grad


class _OfLayers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, collect: Collect, shapes: Sequence[Sequence[int]], count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.collect, ctx.width = collect, len(shapes)
        # One element, never read, in the place of each tensor.
        return tuple(
            tensors[0].new_empty(1).expand(*shape) for _ in range(count) for shape in shapes
        )

    @staticmethod
    def backward(ctx: Any, *left: Tensor) -> tuple[Tensor | None, ...]:
        of_traces = [list(left[n :: ctx.width]) for n in range(ctx.width)]
        return None, None, None, *ctx.collect(*of_traces)
