"""A copy of a training's state on the host, taken while the training goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.errors import InputError
from scalefold.train.assemble import Trainer
from scalefold.weights import State


class Snapshot:
    """The state of a training at one moment, by name, on the CPU.

    Its memory is laid out once. On a GPU's training it is page-locked, and a stream of its own
    fills it while the passes of the next step run, which read the same state; only the update at
    their end must wait for the copy, which is there long before.

    Parameters
    ----------
    trainer : Trainer

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
        If the host has not so much memory.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._step, self._state = trainer.step, trainer.state()
        self._copies = _host_memory(self._state)

        def by_name(part: str) -> State:
            views = trainer.parameters.by_name(self._copies[part])
            # Separate tensors in the same memory: as views of one buffer each would take all of it
            # into a file.
            return {name: torch.from_numpy(view.numpy()) for name, view in views.items()}

        self.weights, self.averaged = by_name("weights"), by_name("averaged")
        self.optimiser = {
            "first_moment": by_name("first_moment"),
            "second_moment": by_name("second_moment"),
            "updates": self._copies["updates"],
            "averaged_updates": self._copies["averaged_updates"],
        }
        self._device = trainer.parameters.master.device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None

    def take(self) -> None:
        """Begin to overwrite this with the state that all work asked for so far leads to.

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
        self._step.hold_update(self._copied)

    def wait(self) -> None:
        """Wait until it is whole; on any thread."""
        if self._copied is not None:
            with torch.cuda.device(self._device):  # a new thread's is the first GPU
                self._copied.synchronize()

    def _copy(self) -> None:
        for name, tensor in self._state.items():
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
            f"the host has no {gigabytes:.1f} GB of memory, page-locked where a GPU trains, for a "
            f"copy of the training's state, from which checkpoints are written ({error}): give the "
            "training more memory, or end what else holds so much"
        ) from error
