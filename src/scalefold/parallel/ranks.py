"""A group of processes (ranks) that train one model together.

`ALONE` is the group of one process, so no caller asks how many there are.
"""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from scalefold.parallel.axis import Pending, Ready
from scalefold.parallel.launcher_store import LauncherStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Their names since torch 2.13, and before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_SECONDS_BETWEEN_LOOKS: Final = 0.001

_NCCL_SECONDS: Final = 10.0
"""How much longer than a rank's host NCCL waits for the others."""


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

    def all_reduce(self, x: Tensor) -> Pending:
        """Sum over the ranks, in place; ``x`` is not to be touched before ``wait()``.

        The sum is the same on all ranks to the last bit.
        """
        return Ready(x)

    def part(self, x: Tensor) -> Tensor:
        """View of this rank's part of ``x``, whose length is a multiple of ``size``."""
        return x.chunk(self.size)[self.rank]

    def all_gather_parts(self, x: Tensor) -> None:
        """Overwrite each part of ``x`` with that of the rank that owns it, see `part`."""

    def broadcast(self, x: Tensor) -> None:
        """Overwrite ``x`` with that of rank 0."""

    def broadcast_object(self, value: T | None) -> T:
        """Rank 0's value; pickled, so for the start and the end of a run, not for its steps."""
        return cast(T, value)

    def broadcast_on_host(self, value: T | None) -> T:
        """Rank 0's small value, pickled, by the launcher's store: no GPU waits, at any step."""
        return cast(T, value)

    def all_gather_object(self, value: T) -> list[T]:
        """All ranks' values, in the order of ranks; pickled, so not for a run's steps."""
        return [value]

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def barrier_without_timeout(self) -> None:
        """Wait until all ranks are here, however long some of them work."""

    def first_at_barrier(self) -> bool:
        """Whether rank 0 waits in `barrier_without_timeout`."""
        return False

    def synchronize(self, event: torch.cuda.Event) -> None:
        """Wait until the GPU has reached the event; its work before may be exchanges."""
        event.synchronize()

    def set_timeout(self, seconds: float) -> None:
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
    store : LauncherStore
        Of the launcher that started the processes.
    """

    def __init__(self, mesh: DeviceMesh, store: LauncherStore) -> None:
        self.group, self.store = mesh.get_group(), store
        self.rank, self.size = mesh.get_local_rank(), mesh.size()
        self.device_type = mesh.device_type
        self._seconds = math.inf
        self._channel = f"told/{'-'.join(map(str, mesh.mesh.flatten().tolist()))}"
        self._num_broadcasts = 0

    def all_reduce(self, x: Tensor) -> Pending:
        """See `Ranks`."""
        with self.store.loss_explained():
            work = dist.all_reduce(x, group=self.group, async_op=True)
        return _Arriving(self.store, x, work, x)

    def all_to_all(self, parts: Tensor) -> Pending:
        """Exchange the parts (size, ...): the n-th goes to rank n, and its place gets rank n's."""
        out = torch.empty_like(parts)
        with self.store.loss_explained():
            work = dist.all_to_all_single(out, parts, group=self.group, async_op=True)
        return _Arriving(self.store, out, work, parts)

    def all_gather(self, x: Tensor) -> Pending:
        """All ranks' tensors (size, ...), in the order of ranks."""
        out = x.new_empty(self.size, *x.shape)
        with self.store.loss_explained():  # gloo asks for as many dimensions
            work = _all_gather(out.flatten(0, 1), x, group=self.group, async_op=True)
        return _Arriving(self.store, out, work, x)

    def reduce_scatter(self, parts: Tensor) -> Pending:
        """Sum over the ranks of the part (size, ...) that has this rank's number."""
        out = parts.new_empty(parts.shape[1:])
        with self.store.loss_explained():
            sent = parts.flatten(0, 1)
            work = _reduce_scatter(out, sent, group=self.group, async_op=True)
        return _Arriving(self.store, out, work, parts)

    def all_gather_parts(self, x: Tensor) -> None:
        """See `Ranks`."""
        with self.store.loss_explained():
            _all_gather(x, self.part(x), group=self.group)

    def broadcast(self, x: Tensor) -> None:
        """See `Ranks`."""
        whole = x.contiguous()  # NCCL takes nothing else
        with self.store.loss_explained():
            dist.broadcast(whole, group=self.group, group_src=0)
        if whole is not x:
            x.copy_(whole)

    def broadcast_object(self, value: T | None) -> T:
        """See `Ranks`."""
        values = [value]
        with self.store.loss_explained():
            dist.broadcast_object_list(values, group=self.group, group_src=0)
        return cast(T, values[0])

    def all_gather_object(self, value: T) -> list[T]:
        """See `Ranks`."""
        values: list[T | None] = [None] * self.size
        with self.store.loss_explained():
            dist.all_gather_object(values, value, group=self.group)
        return cast(list[T], values)

    def broadcast_on_host(self, value: T | None) -> T:
        """See `Ranks`."""
        self._num_broadcasts += 1
        with self.store.loss_explained():
            first, number = self.rank == 0, self._num_broadcasts
            return self.store.broadcast(self._channel, number, value, first=first)

    def barrier(self) -> None:
        """See `Ranks`."""
        with self.store.loss_explained():
            dist.barrier(self.group)

    def barrier_without_timeout(self) -> None:
        """See `Ranks`."""
        with self.store.loss_explained():
            self.store.barrier()

    def first_at_barrier(self) -> bool:
        """See `Ranks`."""
        return self.store.at_barrier(0)

    def synchronize(self, event: torch.cuda.Event) -> None:
        """See `Ranks`. Names a rank that is silent for too long, and ends this process."""
        deadline = time.monotonic() + self._seconds
        while not event.query():
            if time.monotonic() > deadline:
                waited = RuntimeError(f"the GPU has waited for {self._seconds:g} s")
                logger.error("%s", self.store.diagnosis(waited))
                # Nothing can be closed: while the GPU waits, calls of CUDA and NCCL do not return.
                os._exit(1)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def set_timeout(self, seconds: float) -> None:
        """See `Ranks`."""
        # NCCL does not say who is lost, and its end may hang: so `synchronize` comes first.
        later = _NCCL_SECONDS if self.device_type == "cuda" else 0
        self.group.set_timeout(timedelta(seconds=seconds + later))
        self._seconds = seconds
        self.store.set_timeout(seconds)


@dataclass(frozen=True, eq=False)
class _Arriving:
    store: LauncherStore
    value: Tensor
    work: Any
    sent: Tensor  # must live as long as the exchange

    def wait(self) -> Tensor:
        """Wait for the result: the host on a CPU, the current stream on a GPU."""
        with self.store.loss_explained():
            self.work.wait()
        return self.value


def broadcast_tensors(ranks: Ranks, tensors: list[Tensor]) -> None:
    """Overwrite tensors with those of rank 0."""
    with torch.no_grad():
        for tensor in tensors:
            ranks.broadcast(tensor)
