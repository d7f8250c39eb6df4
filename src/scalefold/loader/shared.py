"""One loader for the ranks that share their samples: its rank serves, the others receive.

Each rank with a loader of its own would get other samples, ready first. Batches are described from
host to host, and their features go from device to device in one piece: the same bits for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch
from torch import Tensor

from scalefold.errors import ElsewhereError, InputError
from scalefold.features.contract import Features
from scalefold.loader.loader import Batch, TrainingLoader
from scalefold.loader.order import Position
from scalefold.loader.prepare import SampleError
from scalefold.loader.waiting import StoppedWaitingError
from scalefold.parallel import Ranks

_ALIGNMENT: Final = 256
"""Bytes between the starts of tensors, as torch's allocator has it."""


class Batches(Protocol):
    """What a training takes its samples from."""

    def __next__(self) -> Batch:
        """Return the next step's batch."""

    def position(self, step: int) -> Position:
        """Where this rank is in its data, see `TrainingLoader.position`."""


@dataclass(frozen=True)
class _Described:
    """A batch without its tensors, or why there is none.

    Attributes
    ----------
    batch : Batch
        Its samples are empty.
    tensors : list of (shape, dtype)
        The different tensors of all samples.
    samples : list of list of dict
        Of each feature, which of the tensors it is.
    """

    batch: Batch
    tensors: list[tuple[torch.Size, torch.dtype]]
    samples: list[list[dict[str, int]]]


def shared(own: TrainingLoader | None, ranks: Ranks, device: torch.device) -> Batches:
    """Return the batches of ranks that share their samples.

    Parameters
    ----------
    own : TrainingLoader or None
        On the first of the ranks.
    ranks : Ranks
    device : torch.device
        Of this rank.
    """
    if own is not None and ranks.size == 1:
        return own
    return SharedLoader(own, ranks, device)


class SharedLoader(Iterator[Batch]):
    """See `shared`."""

    def __init__(self, own: TrainingLoader | None, ranks: Ranks, device: torch.device) -> None:
        self._own, self._ranks, self._device = own, ranks, device

    def __next__(self) -> Batch:
        """Return the next step's batch.

        Raises
        ------
        InputError, SampleError, StoppedWaitingError
            What the loader raised; the first two are an `ElsewhereError` on the other ranks.
        """
        if self._own is None:
            return self._receive()
        try:
            batch = next(self._own)
        except (InputError, SampleError, StoppedWaitingError) as error:
            self._ranks.tell(_Failure(str(error), isinstance(error, StoppedWaitingError)))
            raise
        found = [t for passes in batch.samples for features in passes for t in features.values()]
        tensors = {id(tensor): tensor for tensor in found}
        places = {key: place for place, key in enumerate(tensors)}
        samples = [
            [{name: places[id(tensor)] for name, tensor in features.items()} for features in passes]
            for passes in batch.samples
        ]
        specs = [(tensor.shape, tensor.dtype) for tensor in tensors.values()]
        self._ranks.tell(_Described(replace(batch, samples=[]), specs, samples))
        memory, views = _one_piece(specs, self._device)
        for view, tensor in zip(views, tensors.values(), strict=True):
            view.copy_(tensor)
        self._ranks.broadcast(memory)
        return batch

    def position(self, step: int) -> Position:
        """See `TrainingLoader.position`; ranks without a loader are nowhere."""
        return Position(step) if self._own is None else self._own.position(step)

    def _receive(self) -> Batch:
        told: _Described | _Failure = self._ranks.tell(None)
        if isinstance(told, _Failure):
            raise StoppedWaitingError(told.text) if told.stopped else ElsewhereError(told.text)
        memory, views = _one_piece(told.tensors, self._device)
        self._ranks.broadcast(memory)
        samples: list[list[Features]] = [
            [{name: views[place] for name, place in features.items()} for features in passes]
            for passes in told.samples
        ]
        return replace(told.batch, samples=samples)


@dataclass(frozen=True)
class _Failure:
    text: str
    stopped: bool


def _one_piece(
    specs: Sequence[tuple[torch.Size, torch.dtype]], device: torch.device
) -> tuple[Tensor, list[Tensor]]:
    """Memory for all tensors, and the tensors in it."""
    sizes = [shape.numel() * dtype.itemsize for shape, dtype in specs]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    memory = torch.empty(starts[-1], dtype=torch.uint8, device=device)
    return memory, [
        memory[start : start + size].view(dtype).view(shape)
        for start, size, (shape, dtype) in zip(starts, sizes, specs)
    ]
