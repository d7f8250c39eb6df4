"""The launcher's key-value store, by which processes exchange small values from host to host.

It works beside the exchange of tensors: for news at each step, for a wait that may take hours, and
to find out who is lost and why when the exchange of tensors breaks off.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import timedelta
from typing import Final, TypeVar, cast

import torch.distributed as dist

from scalefold.errors import RankLostError

T = TypeVar("T")

_SURVIVORS_SECONDS: Final = 3.0
"""How long the survivors of a failed exchange wait for each other, to find out who is missing."""

_SECONDS_BETWEEN_LOOKS: Final = 0.2

_KEPT: Final = 64
"""Broadcasts that a channel keeps. Ranks are a few steps apart at most: older ones were read."""


class LauncherStore:
    """What one process writes into the store, and reads of the others."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size

    def of_first(self, size: int) -> LauncherStore:
        """The same store, for this process and others of the first ``size``."""
        return LauncherStore(self._store, self._rank, size)

    def barrier(self) -> None:
        """Wait until all processes have called this, however long some of them work.

        Raises
        ------
        RankLostError
            If one has ended with an error.
        """
        self._store.set(f"done/{self._rank}", "")
        for rank in range(self._size):
            while not self.at_barrier(rank):
                if self._store.check([f"ended/{rank}"]):
                    text = self._store.get(f"ended/{rank}").decode()
                    raise RankLostError(f"rank {rank} ended with {text}")
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    def at_barrier(self, rank: int) -> bool:
        """Whether a process waits in `barrier`."""
        return self._store.check([f"done/{rank}"])

    def broadcast(self, channel: str, number: int, value: T | None, *, first: bool) -> T:
        """Return the first rank's value; ``number`` counts the broadcasts of this channel."""
        if not first:
            return cast(T, pickle.loads(b64decode(self._store.get(f"{channel}/{number}"))))
        self._store.set(f"{channel}/{number}", b64encode(pickle.dumps(value)).decode())
        self._store.delete_key(f"{channel}/{number - _KEPT}")
        return cast(T, value)

    def set_timeout(self, seconds: float) -> None:
        """Wait for a value no longer than this."""
        self._store.set_timeout(timedelta(seconds=seconds))

    def report_end(self, error: BaseException) -> None:
        """Tell the others why this process ends."""
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the store is gone: so are the others
            self._store.set(f"ended/{self._rank}", text)

    @contextlib.contextmanager
    def loss_explained(self) -> Iterator[None]:
        """Around an exchange: say which ranks are lost if it breaks off.

        Raises
        ------
        RankLostError
            In the place of torch's error.
        """
        try:
            yield
        except RuntimeError as error:
            raise RankLostError(self.diagnosis(error)) from error

    def diagnosis(self, error: RuntimeError) -> str:
        """Say which ranks are lost, and why, as far as they have told; takes some seconds."""
        reason = str(error).splitlines()[0]
        what = f"rank {self._rank}: the exchange with the other ranks broke off ({reason})"
        try:
            # A rank that lost contact says so. The others lost contact with those that say nothing.
            self._store.set(f"lost/{self._rank}", "")
            deadline = time.monotonic() + _SURVIVORS_SECONDS
            while (missing := self._silent()) and time.monotonic() < deadline:
                time.sleep(0.1)
            ended = [
                f"rank {rank} ended with {self._store.get(f'ended/{rank}').decode()}"
                for rank in range(self._size)
                if rank != self._rank and self._store.check([f"ended/{rank}"])
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
            for rank in range(self._size)
            if not (self._store.check([f"lost/{rank}"]) or self._store.check([f"ended/{rank}"]))
        ]
