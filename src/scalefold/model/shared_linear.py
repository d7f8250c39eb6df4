"""Linear layers that several layers of a module share: one product for their weights' gradients."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from scalefold.model.traces import traced, traces_of_layers
from scalefold.ops import Ops


class SharedLinear(NamedTuple):
    """Weights as one of the layers uses them.

    Attributes
    ----------
    weight, bias : Tensor, shapes (C, K), (C,)
        Without a gradient.
    relu : bool
        Whether one ends the layer.
    traces : tuple of Tensor
        Of the layer's rows (..., K), its result and that one's gradient (..., C).
    """

    weight: Tensor
    bias: Tensor
    relu: bool
    traces: tuple[Tensor, ...]

    def apply(self, ops: Ops, x: Tensor) -> Tensor:
        """The layer's result for ``x``."""
        out = ops.wide_linear(x, self.weight, self.bias, self.relu)
        # A tensor of its own: torch.compile takes none twice.
        return traced(out, (x, out.detach()), self.traces)


def for_layers(
    ops: Ops, weight: Tensor, bias: Tensor, relu: bool, shape: torch.Size, count: int
) -> list[SharedLinear]:
    """Weights for so many layers.

    Parameters
    ----------
    ops : Ops
    weight, bias : Tensor, shapes (C, K), (C,)
    relu : bool
        Whether one ends the layer.
    shape : torch.Size
        Of a layer's rows without their last dimension.
    count : int
    """
    outputs, inputs = ((*shape, width) for width in weight.shape)
    collect = partial(_gradients, ops, relu)
    traces = traces_of_layers(collect, (inputs, outputs, outputs), count, weight, bias)
    return [SharedLinear(weight.detach(), bias.detach(), relu, of_layer) for of_layer in traces]


def _gradients(
    ops: Ops, relu: bool, rows: list[Tensor], results: list[Tensor], grads: list[Tensor]
) -> tuple[Tensor, Tensor]:
    return ops.wide_linear_gradients(grads, rows, results if relu else None)
