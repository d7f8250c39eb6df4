"""Pairs to which several layers attend: one sum over layers and heads for their gradient."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor

from scalefold.model.traces import traced, traces_of_layers
from scalefold.ops import Ops


class SharedPair(NamedTuple):
    """The pair representation as one of the layers uses it.

    Attributes
    ----------
    pair : Tensor, shape (B, I, J, Z)
        Without a gradient.
    traces : tuple of Tensor
        Of logits (B, H, I, J), their norms (B, H, I, 2), and the gradient of what the layer makes
        of the pairs (B, I, H, Z).
    """

    pair: Tensor
    traces: tuple[Tensor, ...]

    def attend(self, ops: Ops, *arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`point_attention` to these pairs; ``arguments`` are all others."""
        out, points, pairs, logits, norms = ops.point_attention(*arguments, self.pair)
        return out, points, traced(pairs, (logits, norms), self.traces)


def for_layers(ops: Ops, pair: Tensor, num_heads: int, count: int) -> list[SharedPair]:
    """Pairs (B, I, J, Z) for so many layers."""
    batch, size, _, channels = pair.shape
    of_heads = batch, num_heads, size
    shapes = (*of_heads, size), (*of_heads, 2), (batch, size, num_heads, channels)
    traces = traces_of_layers(partial(_gradient, ops), shapes, count, pair)
    return [SharedPair(pair.detach(), of_layer) for of_layer in traces]


def _gradient(
    ops: Ops, logits: list[Tensor], norms: list[Tensor], grads: list[Tensor]
) -> tuple[Tensor]:
    return (ops.point_attention_pair_gradient(grads, logits, norms),)
