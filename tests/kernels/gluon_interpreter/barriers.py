"""Barriers in shared memory (``mbarrier``): phases, arrivals, bytes that are under way."""

from __future__ import annotations

from typing import Any

from tests.kernels.gluon_interpreter.faults import KernelError
from tests.kernels.gluon_interpreter.program import current
from tests.kernels.gluon_interpreter.shared_memory import SharedMemory


class Barrier:
    """A phase ends when all arrivals and all bytes that were announced are there."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._missing = count
        self._bytes = 0
        self._phase = 0

    def __str__(self) -> str:
        return (
            f"{self._name} (phase {self._phase}, {self._missing} of {self._count} arrivals and "
            f"{self._bytes} bytes missing)"
        )

    def arrive(self, number: int = 1) -> None:
        if number > self._missing:
            raise KernelError(f"{number} more arrivals at {self}")
        self._missing -= number
        self._end_phase()

    def expect(self, size: int) -> None:
        self._bytes += size
        self.arrive()

    def receive(self, size: int) -> None:
        self._bytes -= size
        self._end_phase()

    def _end_phase(self) -> None:
        if self._missing == 0 and self._bytes == 0:
            self._missing = self._count
            self._phase ^= 1

    def has_passed(self, parity: int) -> bool:
        """Whether the last phase of this parity has ended."""
        return self._phase != parity


def at(memory: SharedMemory) -> Barrier:
    """The barrier that lies there."""
    try:
        return current().barriers[memory.address]
    except KeyError:
        raise KernelError(f"no barrier was made in this shared memory {memory.shape}") from None


def init(memory: SharedMemory, count: int) -> None:
    barriers = current().barriers
    if memory.address in barriers:
        raise KernelError(f"a barrier is made anew: {at(memory)}")
    barriers[memory.address] = Barrier(f"barrier {len(barriers)}", int(count))
    # To TMA it is something that a thread stored.
    memory.note_store()


def invalidate(memory: SharedMemory) -> None:
    at(memory)
    del current().barriers[memory.address]


def expect(memory: SharedMemory, size: Any, pred: Any = True) -> None:
    if pred:
        at(memory).expect(int(size))
    current().pause()


def arrive(memory: SharedMemory, *, count: int = 1, pred: Any = True) -> None:
    if pred:
        at(memory).arrive(count)
    current().pause()


def wait(memory: SharedMemory, phase: Any, pred: Any = True, deps: Any = ()) -> None:
    if pred:
        barrier, parity = at(memory), int(phase)
        current().partitions.wait(lambda: barrier.has_passed(parity), barrier)
