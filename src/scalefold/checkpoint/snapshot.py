"""A copy of a training run's state on the host, taken while training goes on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalefold.checkpoint.state import TrainingState
from scalefold.errors import InputError


class StateSnapshot:
    """The state of a training run at one moment, by name, on the CPU.

    Its memory is allocated once. For training on a GPU it is page-locked, and a stream of its own
    fills it while the passes of the next step run, which read the same state. Only the update at
    their end waits for the copy, which is complete long before. Where the state is sharded, the
    passes wait too: it is gathered where their gradients go.

    Parameters
    ----------
    hold_update : callable
        Has the next update wait, on the device, for an event.

    Attributes
    ----------
    weights, averaged : dict of str to Tensor
        Master weights and their average, by parameter.
    optimiser : dict
        Everything else that the next update depends on: ``first_moment`` and ``second_moment`` by
        parameter, ``updates`` and ``averaged_updates``.

    Raises
    ------
    InputError
        If the host does not have enough memory.
    """

    def __init__(
        self, state: TrainingState, hold_update: Callable[[torch.cuda.Event], None]
    ) -> None:
        self._state, self._hold_update = state, hold_update
        weights = state.parameters.master
        self._copies = _host_memory(
            {name: weights if part.dim() else part for name, part in state.tensors().items()}
        )
        self.weights, self.averaged, first_moment, second_moment = (
            state.by_name(self._copies[part])
            for part in ("weights", "averaged", "first_moment", "second_moment")
        )
        self.optimiser = {
            "first_moment": first_moment,
            "second_moment": second_moment,
            "updates": self._copies["updates"],
            "averaged_updates": self._copies["averaged_updates"],
        }
        self._device = weights.device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None

    def take(self) -> None:
        """Begin to copy the state that all work launched so far leads to.

        The step's next update waits for it, on a GPU; the caller does not.
        """
        if self._stream is None:
            self._copy()
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._copy()
            self._copied = torch.cuda.Event(blocking=True)  # who waits for it sleeps
            self._copied.record()
        self._hold_update(self._copied)
        if self._state.owners.size > 1:
            self._copied.wait(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait until the copy is complete; on any thread."""
        if self._copied is not None:
            with torch.cuda.device(self._device):  # a new thread's is the first GPU
                self._copied.synchronize()

    def _copy(self) -> None:
        for name, tensor in self._state.whole():
            self._copies[name].copy_(tensor, non_blocking=True)


def _host_memory(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Memory of the same shapes on the CPU, where a GPU can write into it by itself."""
    try:
        return {
            name: torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            for name, tensor in state.items()
        }
    except RuntimeError as error:
        gigabytes = sum(tensor.nbytes for tensor in state.values()) / 1e9
        raise InputError(
            f"the host lacks {gigabytes:.1f} GB of memory, page-locked if a GPU trains, for a copy "
            f"of the training's state that checkpoints are written from ({error}): give the "
            "training more memory, or end other processes"
        ) from error
