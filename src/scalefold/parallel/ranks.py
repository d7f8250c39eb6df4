"""A group of processes (ranks) that train one model together.

`ALONE` is the group of one process, so no caller asks how many there are.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from scalefold.errors import ElsewhereError, InputError
from scalefold.parallel.axis import Pending, Ready
from scalefold.parallel.notes import Notes

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Their names since torch 2.13, and before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_SECONDS_BETWEEN_LOOKS: Final = 0.001

_NCCL_SECONDS: Final = 10.0
"""How much longer than a rank's host NCCL waits for the others."""


class Gathering(Protocol):
    """A group of ranks that can exchange values."""

    @property
    def rank(self) -> int:
        """Place of this process, from 0."""
        ...

    def gather(self, value: T) -> list[T]:
        """All ranks' values, in the order of ranks; pickled, so not for a run's steps."""
        ...


class Ranks:
    """A group of ranks; this class is the group of one process.

    All ranks of a group make the same calls in the same order.

    Attributes
    ----------
    rank, size : int
        Place of this process, from 0, and number of ranks.
    """

    rank = 0
    size = 1

    def sum(self, x: Tensor) -> Pending:
        """Sum over the ranks, in place; ``x`` is not to be touched before ``wait()``.

        The sum is the same on all ranks to the last bit.
        """
        return Ready(x)

    def part(self, x: Tensor) -> Tensor:
        """View of this rank's part of ``x``, whose length is a multiple of ``size``."""
        return x.chunk(self.size)[self.rank]

    def complete(self, x: Tensor) -> None:
        """Overwrite each part of ``x`` with that of the rank whose part it is."""

    def broadcast(self, x: Tensor) -> None:
        """Overwrite ``x`` with that of rank 0."""

    def share(self, value: T | None) -> T:
        """Rank 0's value; pickled, so for the start and the end of a run, not for its steps."""
        return cast(T, value)

    def tell(self, value: T | None) -> T:
        """Rank 0's value, from host to host at each step: no GPU waits. Small, and pickled."""
        return cast(T, value)

    def gather(self, value: T) -> list[T]:
        """All ranks' values, in the order of ranks; pickled, so not for a run's steps."""
        return [value]

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def wait_for_all(self) -> None:
        """Wait until all ranks are here, however long some of them work."""

    def left(self) -> bool:
        """Whether rank 0 waits there."""
        return False

    def await_device(self, event: torch.cuda.Event) -> None:
        """Wait until the GPU has reached the event; its work before may be exchanges."""
        event.synchronize()

    def limit(self, seconds: float) -> None:
        """From now on, treat ranks that do not answer for this long as dead."""


ALONE: Final = Ranks()


class MeshRanks(Ranks):
    """The ranks along a dimension of torch's device mesh.

    Exchanges that return a `Pending` go on while others are computed: on a GPU beside the current
    stream, which waits for them in ``wait()``; a CUDA graph may capture them.

    Parameters
    ----------
    mesh : DeviceMesh
        Of one dimension, after `init_process_group`.
    notes : Notes
        What the processes leave for each other.
    """

    def __init__(self, mesh: DeviceMesh, notes: Notes) -> None:
        self.group, self.notes = mesh.get_group(), notes
        self.rank, self.size = mesh.get_local_rank(), mesh.size()
        self.device_type = mesh.device_type
        self._seconds = math.inf
        self._channel = f"told/{'-'.join(map(str, mesh.mesh.flatten().tolist()))}"
        self._num_told = 0

    def sum(self, x: Tensor) -> Pending:
        """See `Ranks`."""
        with self.notes.loss_explained():
            work = dist.all_reduce(x, group=self.group, async_op=True)
        return _Arriving(self.notes, x, work, x)

    def all_to_all(self, parts: Tensor) -> Pending:
        """Exchange the parts (size, ...): the n-th goes to rank n, and its place gets rank n's."""
        out = torch.empty_like(parts)
        with self.notes.loss_explained():
            work = dist.all_to_all_single(out, parts, group=self.group, async_op=True)
        return _Arriving(self.notes, out, work, parts)

    def all_gather(self, x: Tensor) -> Pending:
        """All ranks' tensors (size, ...), in the order of ranks."""
        out = x.new_empty(self.size, *x.shape)
        with self.notes.loss_explained():  # gloo asks for as many dimensions
            work = _all_gather(out.flatten(0, 1), x, group=self.group, async_op=True)
        return _Arriving(self.notes, out, work, x)

    def reduce_scatter(self, parts: Tensor) -> Pending:
        """Sum over the ranks of the part (size, ...) that has this rank's number."""
        out = parts.new_empty(parts.shape[1:])
        with self.notes.loss_explained():
            sent = parts.flatten(0, 1)
            work = _reduce_scatter(out, sent, group=self.group, async_op=True)
        return _Arriving(self.notes, out, work, parts)

    def complete(self, x: Tensor) -> None:
        """See `Ranks`."""
        with self.notes.loss_explained():
            _all_gather(x, self.part(x), group=self.group)

    def broadcast(self, x: Tensor) -> None:
        """See `Ranks`."""
        whole = x.contiguous()  # NCCL takes nothing else
        with self.notes.loss_explained():
            dist.broadcast(whole, group=self.group, group_src=0)
        if whole is not x:
            x.copy_(whole)

    def share(self, value: T | None) -> T:
        """See `Ranks`."""
        values = [value]
        with self.notes.loss_explained():
            dist.broadcast_object_list(values, group=self.group, group_src=0)
        return cast(T, values[0])

    def gather(self, value: T) -> list[T]:
        """See `Ranks`."""
        values: list[T | None] = [None] * self.size
        with self.notes.loss_explained():
            dist.all_gather_object(values, value, group=self.group)
        return cast(list[T], values)

    def tell(self, value: T | None) -> T:
        """See `Ranks`."""
        self._num_told += 1
        with self.notes.loss_explained():
            return self.notes.pass_on(self._channel, self._num_told, value, first=self.rank == 0)

    def barrier(self) -> None:
        """See `Ranks`."""
        with self.notes.loss_explained():
            dist.barrier(self.group)

    def wait_for_all(self) -> None:
        """See `Ranks`."""
        with self.notes.loss_explained():
            self.notes.wait_for_all()

    def left(self) -> bool:
        """See `Ranks`."""
        return self.notes.is_done(0)

    def await_device(self, event: torch.cuda.Event) -> None:
        """See `Ranks`. Names a rank that is silent for too long, and ends this process."""
        deadline = time.monotonic() + self._seconds
        while not event.query():
            if time.monotonic() > deadline:
                waited = RuntimeError(f"the GPU has waited for {self._seconds:g} s")
                logger.error("%s", self.notes.diagnosis(waited))
                # Nothing can be closed: while the GPU waits, calls of CUDA and NCCL do not return.
                os._exit(1)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def limit(self, seconds: float) -> None:
        """See `Ranks`."""
        # NCCL does not say who is lost, and its end may hang: so `await_device` comes first.
        later = _NCCL_SECONDS if self.device_type == "cuda" else 0
        self.group.set_timeout(timedelta(seconds=seconds + later))
        self._seconds = seconds
        self.notes.limit(seconds)


@dataclass(frozen=True, eq=False)
class _Arriving:
    notes: Notes
    value: Tensor
    work: Any
    sent: Tensor  # must live as long as the exchange

    def wait(self) -> Tensor:
        """Wait for the result: the host on a CPU, the current stream on a GPU."""
        with self.notes.loss_explained():
            self.work.wait()
        return self.value


def on_first(ranks: Ranks, action: Callable[[], T]) -> T:
    """Do something on rank 0 alone; all get its result.

    Raises
    ------
    InputError, PermissionError
        What the action raised; on the other ranks as `ElsewhereError`.
    """
    outcome: tuple[T | None, str | None] | None = None
    if ranks.rank == 0:
        try:
            outcome = action(), None
        except (InputError, PermissionError) as error:
            ranks.share((None, str(error)))
            raise
    result, error_text = ranks.share(outcome)
    if error_text is not None:
        raise ElsewhereError(error_text)
    return cast(T, result)


def on_all(ranks: Gathering, action: Callable[[], T]) -> T:
    """Do something on every rank. If it fails on one it fails on all, and the error is printed
    once.

    Raises
    ------
    InputError, PermissionError
        What the action raised here; as `ElsewhereError` where a lower rank has the same to say, or
        where it failed on other ranks only.
    """
    result, fault = None, None
    try:
        result = action()
    except (InputError, PermissionError) as error:
        fault = error
    faults = ranks.gather(None if fault is None else str(fault))
    if fault is not None and faults.index(str(fault)) == ranks.rank:
        raise fault
    for text in faults:
        if text is not None:
            raise ElsewhereError(text)
    return cast(T, result)


def same_everywhere(ranks: Ranks, what: str, value: str) -> None:
    """Check that all ranks were started with the same thing.

    Raises
    ------
    InputError
        On the ranks where it is another than on rank 0.
    """
    first = ranks.share(value)
    if value != first:
        raise InputError(
            f"rank {ranks.rank} has {what} {value}, rank 0 has {first}: start all ranks with the "
            "same command, and from a file system that they share"
        )


def broadcast_all(ranks: Ranks, tensors: list[Tensor]) -> None:
    """Overwrite tensors with those of rank 0."""
    with torch.no_grad():
        for tensor in tensors:
            ranks.broadcast(tensor)
