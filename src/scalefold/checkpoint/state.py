"""The state of a training run: what the next update of the weights depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalefold.optim.averaging import WeightAverage
from scalefold.optim.on_host import to_host
from scalefold.optim.optimiser import Adam
from scalefold.optim.parameters import FlatParameters
from scalefold.parallel import ALONE, Ranks
from scalefold.weights import State


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Weights, their average, and the optimiser's moments and counters, where they are in use.

    Average and moments may be sharded among ``owners``: all ranks have the weights, and each one
    part of these. All owners call `shard`, `unshard` and `whole` together. With ``on_host``, what
    may be sharded waits in the host's memory from update to update.
    """

    parameters: FlatParameters
    optimiser: Adam
    average: WeightAverage
    owners: Ranks = ALONE
    on_host: bool = False

    def shard(self) -> None:
        """Keep this rank's part, where it waits."""
        keep = to_host if self.on_host else torch.clone
        self._replace(lambda whole: keep(self.owners.part(whole)))

    def unshard(self) -> None:
        """Have all of it on each rank's device, as before `shard`."""
        self._replace(lambda part: self._gathered(part, torch.zeros_like(self.parameters.master)))

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """All of it, by name; a tensor that is sharded is whole until the next is asked for.

        It is gathered in the buffer of gradients, which nobody needs between steps.
        """
        device = self.parameters.master.device
        if self.on_host and device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the update's copies are complete
        for name, tensor in self.tensors().items():
            sharded = self.owners.size > 1 and tensor.dim() and name != "weights"
            yield name, self._gathered(tensor, self.parameters.gradient) if sharded else tensor
        if self.owners.size > 1:
            self.parameters.zero_gradient()

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.owners.size > 1 or self.on_host:
            optimiser, average = self.optimiser, self.average
            optimiser.first_moment = change(optimiser.first_moment)
            optimiser.second_moment = change(optimiser.second_moment)
            average.average = change(average.average)

    def _gathered(self, part: Tensor, into: Tensor) -> Tensor:
        self.owners.part(into).copy_(part)
        self.owners.all_gather_parts(into)
        return into

    def tensors(self) -> dict[str, Tensor]:
        """What this rank has of it, in place: flat buffers of shape (P,), and scalar counters."""
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

        Nothing may be sharded meanwhile.

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
        flat.update_working_copy()
