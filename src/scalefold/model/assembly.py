"""What a model is built with, chosen once at assembly and never passed through a forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from scalefold.ops import TORCH, Ops
from scalefold.parallel import Axis, IdentityAxis


@dataclass
class Assembly:
    """Operations, axis and layer numbers, handed down while modules are constructed.

    Attributes
    ----------
    ops : Ops
        Implementation of the fusible operations.
    axis : Axis
        How a sample is split over ranks.
    """

    ops: Ops = TORCH
    axis: Axis = field(default_factory=IdentityAxis)
    _layers: int = 0

    def next_layer(self) -> int:
        """Number of the next layer with dropout; construction order makes it deterministic."""
        self._layers += 1
        return self._layers - 1
