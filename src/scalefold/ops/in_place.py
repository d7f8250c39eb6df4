"""Updates of long chains' representations in place, so that no earlier version of them is kept.

A block holds on to what it was given until it returns, and so does the stack around it. Each
update that makes a new tensor so leaves one more behind, which of 5,000 residues takes 6 GiB. In
place, all of them are one tensor. Where it has no gradient to come back for, nothing needs the old.

Legend: as in the references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from scalefold.ops.registry import Ops

_ROW_STEP: Final = 64
"""Parts have a multiple of so many rows, which kernels take best."""


def in_place(ops: Ops, max_elements: int) -> Ops:
    """Let operations that update a large representation write into it.

    For inference: there is no gradient, and nothing else may need the representation as it was.

    Parameters
    ----------
    max_elements : int
        Smaller representations are updated as before. Of larger ones, a part has no more, or
        `_ROW_STEP` rows.
    """
    updates = _Updates(ops, max_elements)
    return replace(
        ops,
        outer_product_mean=updates.outer_product_mean,
        residual_linear=updates.residual_linear,
        transition=updates.transition,
        triangle_output=updates.triangle_output,
    )


class _Updates:
    """One method for each operation that updates, of the same name and signature."""

    def __init__(self, ops: Ops, max_elements: int) -> None:
        self._ops, self._max_elements = ops, max_elements

    def outer_product_mean(self, *inputs_and_z: Tensor) -> Tensor:
        """At once: little else takes memory meanwhile."""
        *_, z = inputs_and_z
        updated = self._ops.outer_product_mean(*inputs_and_z)
        return updated if z.numel() <= self._max_elements else z.copy_(updated)

    def residual_linear(self, x: Tensor, h: Tensor, *parameters_and_dropout: Any) -> Tensor:
        """Of a few rows at a time; whole where there is dropout, which knows its place."""
        operation = self._ops.residual_linear
        if parameters_and_dropout[-1] is not None:
            return operation(x, h, *parameters_and_dropout)
        return self._by_rows(x, lambda at: operation(x[:, at], h[:, at], *parameters_and_dropout))

    def transition(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """Of a few rows at a time."""
        return self._by_rows(x, lambda at: self._ops.transition(x[:, at], *parameters))

    def triangle_output(
        self, z: Tensor, product: Tensor, gate: Tensor, *parameters_and_dropout: Any
    ) -> Tensor:
        """Of a few rows at a time; whole where there is dropout, which knows its place."""
        operation = self._ops.triangle_output
        if parameters_and_dropout[-1] is not None:
            return operation(z, product, gate, *parameters_and_dropout)

        def part(at: slice) -> Tensor:
            return operation(z[:, at], product[:, at], gate[:, at], *parameters_and_dropout)

        return self._by_rows(z, part)

    def _by_rows(self, x: Tensor, part: Callable[[slice], Tensor]) -> Tensor:
        if x.numel() <= self._max_elements:
            return part(slice(0, x.shape[1]))
        rows = self._max_elements // x[:, 0].numel() // _ROW_STEP * _ROW_STEP
        for start in range(0, x.shape[1], rows or _ROW_STEP):
            at = slice(start, start + (rows or _ROW_STEP))
            x[:, at] = part(at)
        return x
