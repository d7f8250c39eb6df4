"""One loader for the ranks that share their samples: its rank serves, the others receive.

Each rank with a loader of its own would get other samples, ready first. Batches are described from
host to host, and their features go from device to device in one piece: the same bits for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch

from scalefold.errors import ElsewhereError, InputError
from scalefold.loader.loader import Batch, TrainingLoader
from scalefold.loader.order import Position
from scalefold.loader.prepare import SampleError
from scalefold.loader.tensor_block import Header, TensorBlock
from scalefold.loader.waiting import StoppedWaitingError
from scalefold.parallel import Ranks


class SharedLoader(Iterator[Batch]):
    """The batches of ranks that share their samples.

    Parameters
    ----------
    own : TrainingLoader or None
        On the first of the ranks, which may be alone.
    """

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
            stopped = isinstance(error, StoppedWaitingError)
            self._ranks.broadcast_on_host(_LoaderFailure(str(error), stopped))
            raise
        if self._ranks.size > 1:
            packed = TensorBlock.pack(batch, self._device)
            self._ranks.broadcast_on_host(packed.header)
            self._ranks.broadcast(packed.block)
        return batch

    def position(self, step: int) -> Position:
        """See `TrainingLoader.position`; ranks without a loader are nowhere."""
        return Position(step) if self._own is None else self._own.position(step)

    def _receive(self) -> Batch:
        sent: Header | _LoaderFailure = self._ranks.broadcast_on_host(None)
        if isinstance(sent, _LoaderFailure):
            raise StoppedWaitingError(sent.text) if sent.stopped else ElsewhereError(sent.text)
        packed = TensorBlock.empty(sent, self._device)
        self._ranks.broadcast(packed.block)
        return cast(Batch, packed.open(self._device))


@dataclass(frozen=True)
class _LoaderFailure:
    text: str
    stopped: bool
