"""Partitions of a program (warp groups and single warps), of which one runs at a time.

Each is a thread of Python's. It hands over at operations on barriers, to a partition that a seeded
generator chooses among those that can go on: the same seed gives the same order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from tests.kernels.gluon_interpreter.faults import DeadlockError


class Stopped(BaseException):
    """Ends a partition's thread after another one's error."""


class Partition:
    """What the warps of a partition have under way, oldest first, and what they wait for."""

    def __init__(self, name: str, num_warps: int) -> None:
        self.name, self.num_warps = name, num_warps
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        self.waits_for: Any = None
        self.ended = False
        self.unfenced: list[Any] = []
        """Shared memory that it stored and did not fence."""
        self.products: deque[Any] = deque()
        self.stores: deque[Any] = deque()
        """Copies out of shared memory that have not read it."""

    def can_go_on(self) -> bool:
        return not self.ended and (self.ready is None or self.ready())


class Partitions:
    """Those of a program; the one that runs now.

    Parameters
    ----------
    advance : callable
        Finishes something that is under way, given what partitions wait for; False if nothing is.
    """

    def __init__(self, main: Partition, random: Random, advance: Callable[..., bool]) -> None:
        self.running = main
        self._all = [main]
        self._random, self._advance = random, advance
        self._failure: BaseException | None = None

    def wait(self, ready: Callable[[], bool], waits_for: Any) -> None:
        """Let others run until something holds."""
        me = self.running
        me.ready, me.waits_for = ready, waits_for
        self._hand_over(me)
        me.ready, me.waits_for = None, None

    def pause(self) -> None:
        """Let others run, maybe."""
        if len(self._all) > 1:
            self._hand_over(self.running)

    def run(self, functions: list[tuple[Partition, Callable[[], Any]]]) -> Any:
        """Run all of them; the first in this thread, as the partition that runs now."""
        main, workers = self.running, functions[1:]
        self._all = [main, *(partition for partition, _ in workers)]
        threads = [
            threading.Thread(target=self._work, args=worker, daemon=True) for worker in workers
        ]
        for thread in threads:
            thread.start()
        try:
            result = functions[0][1]()
            self.wait(lambda: all(p.ended for p, _ in workers), "the other partitions' end")
        except BaseException as error:
            self._fail(error)
        for thread in threads:
            thread.join()
        self._all = [main]
        if self._failure is not None:
            raise self._failure
        return result

    def _work(self, partition: Partition, function: Callable[[], Any]) -> None:
        partition.turn.acquire()
        with np.errstate(all="ignore"):
            try:
                if self._failure is None:
                    function()
                partition.ended = True
                if self._failure is None:
                    self._hand_over(partition)
            except BaseException as error:
                partition.ended = True
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Keep the first error; wake all, so that they end."""
        if self._failure is None:
            self._failure = error
            for partition in self._all:
                partition.turn.release()

    def _hand_over(self, me: Partition) -> None:
        following = self._choose()
        if following is me:
            return
        self.running = following
        following.turn.release()
        if not me.ended:
            me.turn.acquire()
            if self._failure is not None:
                raise Stopped

    def _choose(self) -> Partition:
        while not (able := [p for p in self._all if p.can_go_on()]):
            waiting = [p for p in self._all if not p.ended]
            if not self._advance([p.waits_for for p in waiting]):
                states = "; ".join(f"{p.name} waits for {p.waits_for}" for p in waiting)
                raise DeadlockError(states)
        return self._random.choice(able)
