"""Operations in parts, for long chains: what they need besides their results stays bounded.

Attention's logits grow with the third power of the length. The references here make all of them at
once; in parts they make those of a few rows at a time. Kernels keep them in registers, and need no
parts. What fits is done in one part, so short chains are computed as without this. Parts are rows
or positions that an operation treats alike, so the same numbers are added in the same order, up to
how a matrix product of another size adds them.

Legend: as in the references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from scalefold.ops.registry import TORCH, Ops


def chunked(ops: Ops, max_elements: int) -> Ops:
    """Do the references among some operations in parts; other implementations stay.

    For inference: results are written in place, which has no gradient.

    Parameters
    ----------
    max_elements : int
        Numbers that a part may make besides its result; a single row may make more.
    """
    parts = _Parts(max_elements)
    changed = {
        field.name: getattr(parts, field.name)
        for field in fields(ops)
        if hasattr(parts, field.name) and getattr(ops, field.name) is getattr(TORCH, field.name)
    }
    return replace(ops, **changed)


class _Parts:
    """One method for each operation that is done in parts, of the same name and signature."""

    def __init__(self, max_elements: int) -> None:
        self._max_elements = max_elements

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, mask: Tensor, *rest: Any
    ) -> Tensor:
        """Computed for a few rows R at a time."""
        batch, rows, queries, heads, _ = q.shape

        def part(at: slice) -> Tensor:
            own_mask = mask if mask.shape[1] == 1 else mask[:, at]
            own_gate = None if gate is None else gate[:, at]
            return TORCH.attention(q[:, at], k[:, at], v[:, at], own_gate, own_mask, *rest)

        return self._joined(part, 1, rows, batch * heads * queries * k.shape[2])

    def global_attention(self, x: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        """Of a few columns N at a time."""
        batch, sequences, columns, channels = x.shape
        _, _, query_weight, *_ = parameters

        def part(at: slice) -> Tensor:
            return TORCH.global_attention(x[:, :, at], mask[:, :, at], *parameters)

        each = batch * sequences * (channels + 3 * len(query_weight))
        return self._joined(part, 2, columns, each)

    def pointwise_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """At a few positions P at a time."""

        def part(at: slice) -> Tensor:
            return TORCH.pointwise_attention(q[:, at], k[:, :, at], v[:, :, at], mask)

        return self._joined(part, 1, q.shape[1], k[:, :, 0].numel())

    def triangle_projection(
        self, z: Tensor, mask: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        """Computed for a few rows I at a time."""

        def part(at: slice) -> tuple[Tensor, ...]:
            return TORCH.triangle_projection(z[:, at], mask[:, at], *parameters)[:-1]

        return *self._joined_all(part, 1, z.shape[1], 4 * z[:, 0].numel()), z

    def triangle_product_outgoing(self, a: Tensor, b: Tensor) -> Tensor:
        """Of a few channels C at a time, which do not meet."""
        return self._product(TORCH.triangle_product_outgoing, a, b)

    def triangle_product_incoming(self, a: Tensor, b: Tensor) -> Tensor:
        """As outgoing."""
        return self._product(TORCH.triangle_product_incoming, a, b)

    def _product(self, product: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
        def part(at: slice) -> Tensor:
            return product(a[..., at], b[..., at])

        return self._joined(part, -1, a.shape[-1], 3 * b[..., 0].numel())

    def triangle_output(
        self, z: Tensor, product: Tensor, gate: Tensor, *parameters_and_dropout: Any
    ) -> Tensor:
        """Computed for a few rows I at a time; with dropout, which knows its place, at once."""
        *parameters, dropout = parameters_and_dropout
        if dropout is not None:
            return TORCH.triangle_output(z, product, gate, *parameters, dropout)

        def part(at: slice) -> Tensor:
            given = z[:, at], product[:, at], gate[:, at]
            return TORCH.triangle_output(*given, *parameters, None)

        return self._joined(part, 1, z.shape[1], 3 * z[:, 0].numel() + product[:, 0].numel())

    def outer_product_mean(
        self, a: Tensor, b: Tensor, count: Tensor, weight: Tensor, bias: Tensor, z: Tensor
    ) -> Tensor:
        """Computed for a few rows I at a time."""
        batch, _, rows, channels = a.shape

        def part(at: slice) -> Tensor:
            given = a[:, :, at], b, count[:, at], weight, bias, z[:, at]
            return TORCH.outer_product_mean(*given)

        return self._joined(part, 1, rows, 2 * batch * b.shape[2] * channels * b.shape[3])

    def transition(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """Of a few rows, dimension 1, at a time."""
        _, _, up_weight, *_ = parameters
        each = x[:, 0].numel() // x.shape[-1] * (2 * len(up_weight) + x.shape[-1])
        return self._joined(lambda at: TORCH.transition(x[:, at], *parameters), 1, x.shape[1], each)

    def _joined(
        self, part: Callable[[slice], Tensor], dim: int, size: int, elements_each: int
    ) -> Tensor:
        (result,) = self._joined_all(lambda at: (part(at),), dim, size, elements_each)
        return result

    def _joined_all(
        self, part: Callable[[slice], Sequence[Tensor]], dim: int, size: int, elements_each: int
    ) -> Sequence[Tensor]:
        """Make all parts of a dimension, and write them into tensors for the whole."""
        length = max(1, self._max_elements // max(1, elements_each))
        if length >= size:
            return part(slice(0, size))
        wholes: list[Tensor] = []
        for at in _slices(size, length):
            made = part(at)
            if not wholes:
                wholes = [_room(tensor, dim, size) for tensor in made]
            for whole, tensor in zip(wholes, made, strict=True):
                whole.narrow(dim, at.start, at.stop - at.start).copy_(tensor)
        return wholes


def _slices(size: int, length: int) -> Iterator[slice]:
    for start in range(0, size, length):
        yield slice(start, min(start + length, size))


def _room(part: Tensor, dim: int, size: int) -> Tensor:
    shape = list(part.shape)
    shape[dim] = size
    return torch.empty(shape, dtype=part.dtype, device=part.device)
