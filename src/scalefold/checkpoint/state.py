"""The state of a training: what the next update of the weights depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalefold.optim.averaging import WeightAverage
from scalefold.optim.optimiser import Adam
from scalefold.optim.parameters import FlatParameters
from scalefold.weights import State


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Weights, their average, and the optimiser's moments and counters, where they are in use."""

    parameters: FlatParameters
    optimiser: Adam
    average: WeightAverage

    def tensors(self) -> dict[str, Tensor]:
        """All of it, in place: flat buffers of shape (P,), and scalar counters."""
        return {
            "weights": self.parameters.master,
            "averaged": self.average.average,
            "first_moment": self.optimiser.first_moment,
            "second_moment": self.optimiser.second_moment,
            "updates": self.optimiser.updates,
            "averaged_updates": self.average.updates,
        }

    def by_name(self, buffer: Tensor) -> State:
        """Tensors by parameter name, in the memory of a flat buffer on the CPU.

        Each has storage of its own: `torch.save` would write the whole buffer for each view of it.
        """
        views = self.parameters.by_name(buffer)
        return {name: torch.from_numpy(view.numpy()) for name, view in views.items()}

    def restore(
        self, weights: State, averaged: State, optimiser: Mapping[str, Any], source: str
    ) -> None:
        """Put back what a checkpoint holds, bit-exactly; ``source`` names it in errors.

        Raises
        ------
        InputError
            If names or shapes are not the model's.
        """
        flat = self.parameters
        flat.load(flat.master, weights, f"{source}, weights")
        flat.load(self.average.average, averaged, f"{source}, averaged weights")
        for name in ("first_moment", "second_moment"):
            flat.load(self.tensors()[name], optimiser[name], f"{source}, {name}")
        for name in ("updates", "averaged_updates"):
            self.tensors()[name].copy_(optimiser[name])
        flat.publish()
