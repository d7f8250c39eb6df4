"""The program of the grid that runs now."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.kernels.gluon_interpreter.faults import KernelError
from tests.kernels.gluon_interpreter.global_memory import GlobalMemory
from tests.kernels.gluon_interpreter.partitions import Partition, Partitions

MOST_OVERTAKEN = 4
"""So often others, begun later, are finished before a copy; then it is finished with them.

Nothing promises an order, but none is late by as much as the work of a tile takes.
"""

_current: Program | None = None


class Program:
    """Its place in the grid, and what it has under way.

    Attributes
    ----------
    barriers : dict
        By their addresses in shared memory.
    arriving : list
        Copies into shared memory by TMA.
    leaving : list
        Copies out of shared memory that have read it, and have not written global memory.
    ended : list
        Partitions beside the first, when they have ended.
    """

    def __init__(
        self,
        index: tuple[int, ...],
        grid: tuple[int, ...],
        num_warps: int,
        memory: GlobalMemory,
        random: Random,
    ) -> None:
        self.index, self.grid, self.memory = index, grid, memory
        self.partitions = Partitions(Partition("partition 0", num_warps), random, self._advance)
        self.barriers: dict[Any, Any] = {}
        self.arriving: list[Any] = []
        self.leaving: list[Any] = []
        self.ended: list[Partition] = []
        self._random = random
        # Too early a look shows where copies end late, too late a one where some end at once.
        self._lazy = sum(index) % 2 == 0

    @property
    def running(self) -> Partition:
        return self.partitions.running

    def pause(self) -> None:
        """At an operation that others may see: let them run, or a copy be finished, maybe."""
        if not self._lazy and self._random.random() < 0.5:
            self._advance([])
        self.partitions.pause()

    def _advance(self, waits_for: list[Any]) -> bool:
        """Finish the copies that somebody waits for at one barrier, and those begun long before."""
        if not self.arriving:
            return False
        wanted = [copy for copy in self.arriving if copy.barrier in waits_for]
        barrier = self._random.choice(wanted or self.arriving).barrier
        chosen = [copy for copy in self.arriving if copy.barrier is barrier]
        for copy in self.arriving[: self.arriving.index(chosen[-1])]:
            copy.overtaken += 1
        chosen += [copy for copy in self.arriving if copy.overtaken > MOST_OVERTAKEN]
        for copy in dict.fromkeys(chosen):
            self.arriving.remove(copy)
            copy.finish()
        return True

    def write_out(self) -> None:
        """Bring what has left shared memory to global memory."""
        for copy in self.leaving:
            copy.write()
        self.leaving.clear()

    def end(self) -> None:
        """Nothing may be under way when shared memory is given to the next program."""
        if self.arriving:
            raise KernelError("the program ends while copies into its shared memory are under way")
        for partition in (self.running, *self.ended):
            if partition.stores:
                raise KernelError(f"{partition.name} ends while copies read its shared memory")
            if partition.products:
                raise KernelError(f"{partition.name} ends while products are under way")
        self.write_out()


def current() -> Program:
    """The program that runs now."""
    assert _current is not None, "no kernel runs"
    return _current


def set_current(program: Program | None) -> None:
    global _current
    _current = program
