"""A group of processes (ranks) that train one model together.

`ALONE` is the group of one process, so no caller asks how many there are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from scalefold.errors import ElsewhereError, InputError, RankLostError
from scalefold.parallel.axis import Pending, Ready

T = TypeVar("T")

_SURVIVORS_SECONDS: Final = 3.0
"""How long the survivors of a failed exchange wait for each other, to find out who is missing."""


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

    def broadcast(self, x: Tensor) -> None:
        """Overwrite ``x`` with that of rank 0."""

    def share(self, value: T | None) -> T:
        """Rank 0's value; pickled, so for the start and the end of a run, not for its steps."""
        return cast(T, value)

    def gather(self, value: T) -> list[T]:
        """All ranks' values, in the order of ranks; pickled, so not for a run's steps."""
        return [value]

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def limit(self, seconds: float) -> None:
        """Take ranks for dead from now on that do not answer for so long."""


ALONE: Final = Ranks()


class MeshRanks(Ranks):
    """The ranks along a dimension of torch's device mesh.

    Parameters
    ----------
    mesh : DeviceMesh
        Of one dimension, after `init_process_group`.
    store : dist.Store
        Where a rank finds what others said before they ended.
    """

    def __init__(self, mesh: DeviceMesh, store: dist.Store) -> None:
        self._group, self._store = mesh.get_group(), store
        self.rank, self.size = mesh.get_local_rank(), mesh.size()

    def sum(self, x: Tensor) -> Pending:
        """See `Ranks`."""
        with self._loss_explained():
            return _Summing(self, x, dist.all_reduce(x, group=self._group, async_op=True))

    def broadcast(self, x: Tensor) -> None:
        """See `Ranks`."""
        with self._loss_explained():
            dist.broadcast(x, group=self._group, group_src=0)

    def share(self, value: T | None) -> T:
        """See `Ranks`."""
        values = [value]
        with self._loss_explained():
            dist.broadcast_object_list(values, group=self._group, group_src=0)
        return cast(T, values[0])

    def gather(self, value: T) -> list[T]:
        """See `Ranks`."""
        values: list[T | None] = [None] * self.size
        with self._loss_explained():
            dist.all_gather_object(values, value, group=self._group)
        return cast(list[T], values)

    def barrier(self) -> None:
        """See `Ranks`."""
        with self._loss_explained():
            dist.barrier(self._group)

    def limit(self, seconds: float) -> None:
        """See `Ranks`."""
        self._group.set_timeout(timedelta(seconds=seconds))

    def tell(self, error: BaseException) -> None:
        """Tell the others why this rank ends."""
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the store is gone: so are the others
            self._store.set(f"ended/{self.rank}", text)

    @contextlib.contextmanager
    def _loss_explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLostError(self._diagnosis(error)) from error

    def _diagnosis(self, error: RuntimeError) -> str:
        reason = str(error).splitlines()[0]
        what = f"rank {self.rank}: the exchange with the other ranks broke off ({reason})"
        try:
            # A rank that lost contact says so. The others lost contact with those that say nothing.
            self._store.set(f"lost/{self.rank}", "")
            deadline = time.monotonic() + _SURVIVORS_SECONDS
            while (missing := self._silent()) and time.monotonic() < deadline:
                time.sleep(0.1)
            ended = [
                f"rank {rank} ended with {self._store.get(f'ended/{rank}').decode()}"
                for rank in range(self.size)
                if rank != self.rank and self._store.check([f"ended/{rank}"])
            ]
        except RuntimeError:
            return f"{what}, and so did that with the launcher"
        if missing:
            names = ", ".join(map(str, missing))
            ended.append(f"rank {names} gave no sign of life: killed, stuck, or its node is gone")
        return "; ".join([what, *ended])

    def _silent(self) -> list[int]:
        return [
            rank
            for rank in range(self.size)
            if not (self._store.check([f"lost/{rank}"]) or self._store.check([f"ended/{rank}"]))
        ]


@dataclass(frozen=True)
class _Summing:
    ranks: MeshRanks
    value: Tensor
    work: Any

    def wait(self) -> Tensor:
        """Wait for the sum: the host on a CPU, the current stream on a GPU."""
        with self.ranks._loss_explained():
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
