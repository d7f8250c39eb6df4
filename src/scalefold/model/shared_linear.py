"""Linear layers that several layers of a module share: their weights' gradients are made at once.

Autograd would make a product of each layer's rows, and add the results up one by one. Here a layer
takes weights without a gradient, and its rows come back, as gradients of tensors that hold
nothing, to where the weights went out: one product over the rows of all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Gradients = Callable[..., tuple[Tensor, Tensor]]
"""As `scalefold.ops.linear.wide_linear_gradients`."""


class SharedLinear(NamedTuple):
    """Weights as one of the layers uses them.

    Attributes
    ----------
    weight, bias : Tensor, shapes (C, K), (C,)
        Without a gradient.
    rows, grad, out : Tensor, shapes (..., K), (..., C), (..., C)
        What arrives as their gradients are the layer's rows, the gradient of its result, and the
        result. Their own values mean nothing.
    """

    weight: Tensor
    bias: Tensor
    rows: Tensor
    grad: Tensor
    out: Tensor

    def traced(self, out: Tensor, x: Tensor) -> Tensor:
        """The layer's result for ``x``, from where backward brings its rows back."""
        return _Traced.apply(out, x, self.rows, self.grad, self.out)


def for_layers(
    gradients: Gradients, weight: Tensor, bias: Tensor, relu: bool, shape: torch.Size, count: int
) -> list[SharedLinear]:
    """Weights for so many layers.

    Parameters
    ----------
    gradients : callable
        The operation that makes the gradients of weight and bias.
    weight, bias : Tensor, shapes (C, K), (C,)
    relu : bool
        Whether one ends the layer.
    shape : torch.Size
        Of a layer's rows without their last dimension.
    count : int
    """
    parts = _ForLayers.apply(gradients, relu, shape, count, weight, bias)
    detached = weight.detach(), bias.detach()
    return [SharedLinear(*detached, *parts[3 * n : 3 * n + 3]) for n in range(count)]


class _Traced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, *traces: Tensor) -> Tensor:
        ctx.save_for_backward(x, out)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, out = ctx.saved_tensors
        return grad, None, x, grad, out


class _ForLayers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gradients: Gradients,
        relu: bool,
        shape: torch.Size,
        count: int,
        weight: Tensor,
        bias: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.gradients, ctx.relu = gradients, relu
        outputs, inputs = weight.shape
        # One element, never read, in the place of each tensor.
        return tuple(
            weight.new_empty(1).expand(*shape, width)
            for _ in range(count)
            for width in (inputs, outputs, outputs)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, of_results, results = (list(grads[n::3]) for n in range(3))
        passed = results if ctx.relu else None
        return None, None, None, None, *ctx.gradients(of_results, rows, passed)
