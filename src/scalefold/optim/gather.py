"""Gradients of thousands of parameters into one flat buffer, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Gather = Callable[[Sequence[Tensor]], None]
"""Copies tensors of one type into a flat buffer, the n-th to the n-th place. A tensor may be its
place itself."""

MakeGather = Callable[[Tensor, Sequence[int], Sequence[int]], Gather]
"""Makes a `Gather`, `TorchGather` or the kernel's, of a buffer (P,), places and sizes; both count
elements."""


class TorchGather:
    """A `Gather` in plain torch: a few large copies instead of thousands."""

    def __init__(self, buffer: Tensor, places: Sequence[int], sizes: Sequence[int]) -> None:
        self._views = [buffer[p : p + size] for p, size in zip(places, sizes, strict=True)]

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """See `Gather`."""
        if self._views:
            # Private, since torch has no public copy of many tensors in a few launches. One tensor
            # of another layout would make all copies slow.
            torch._foreach_copy_(self._views, [tensor.reshape(-1) for tensor in tensors])
