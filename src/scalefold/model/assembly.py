"""What a model is built with, chosen once at assembly and never passed through a forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scalefold.ops import TORCH, Ops
from scalefold.parallel import Axis, IdentityAxis

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_written(function: _Function) -> _Function:
    """Leave a function as it is: each of its operations is launched on its own."""
    return function


@dataclass
class Assembly:
    """Operations, axis and layer numbers, handed down while modules are constructed.

    Attributes
    ----------
    axis : Axis
        How a sample is split over ranks.
    compiled : callable
        What is done to functions of many small operations: `torch.compile`, or nothing. Kernels
        among ``ops`` stay as they are, and the operations around them are fused.
    """

    ops: Ops = TORCH
    axis: Axis = field(default_factory=IdentityAxis)
    compiled: Callable[[_Function], _Function] = as_written
    _layers: int = 0

    def next_layer(self) -> int:
        """Number of the next layer with dropout; construction order makes it deterministic."""
        self._layers += 1
        return self._layers - 1
