"""TMA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from tests.kernels.gluon_interpreter import barriers
from tests.kernels.gluon_interpreter.faults import KernelError
from tests.kernels.gluon_interpreter.global_memory import bytes_of
from tests.kernels.gluon_interpreter.numbers import MEMORY, OF_TORCH, from_memory, to_memory
from tests.kernels.gluon_interpreter.program import current
from tests.kernels.gluon_interpreter.shared_memory import ARRIVING, UNFENCED, SharedMemory
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


class Descriptor:
    """A tensor as TMA sees it, in boxes."""

    def __init__(self, host: TensorDescriptor) -> None:
        self.dtype = OF_TORCH[host.base.dtype]
        self.block_shape = list(host.block_shape)
        self.block_type = tl.block_type(self.dtype, self.block_shape)
        self.layout = host.layout
        self._shape = tuple(host.shape)
        element = np.dtype(MEMORY[self.dtype])
        memory = bytes_of(host.base)
        memory = memory[: len(memory) // element.itemsize * element.itemsize].view(element)
        # A dimension of one element has any step.
        steps = [0 if n == 1 else s for n, s in zip(self._shape, host.strides, strict=True)]
        last = sum((n - 1) * step for n, step in zip(self._shape, steps, strict=True))
        assert last < len(memory), "a descriptor of more than its tensor's memory"
        self._tensor = np.lib.stride_tricks.as_strided(
            memory, self._shape, [step * element.itemsize for step in steps]
        )

    def _overlap(self, corner: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Of a box and the tensor: in the tensor, and in the box."""
        inner, outer = [], []
        for first, box, size in zip(corner, self.block_shape, self._shape, strict=True):
            start = min(max(first, 0), size)
            end = max(min(first + box, size), start)
            inner.append(slice(start, end))
            outer.append(slice(start - first, end - first) if end > start else slice(0, 0))
        return tuple(inner), tuple(outer)

    def read(self, corner: Sequence[int]) -> NDArray:
        """A box; zeros beyond the tensor."""
        inner, outer = self._overlap(corner)
        box = np.zeros(self.block_shape, self._tensor.dtype)
        box[outer] = self._tensor[inner]
        return from_memory(box, self.dtype)

    def write(self, corner: Sequence[int], box: NDArray) -> None:
        """A box, except what of it is beyond the tensor."""
        inner, outer = self._overlap(corner)
        self._tensor[inner] = to_memory(box, self.dtype)[outer]

    def check(self, memory: SharedMemory) -> None:
        if list(memory.shape) != self.block_shape or memory.dtype != self.dtype:
            raise KernelError(f"a box {self.block_shape} and shared memory {memory.shape}")


class _Arriving:
    """A copy to shared memory."""

    def __init__(
        self, source: Descriptor, corner: list[int], barrier: barriers.Barrier, to: SharedMemory
    ) -> None:
        self._source, self._corner, self.barrier, self._to = source, corner, barrier, to
        self.overtaken = 0
        source.check(to)
        to.check_writable("a copy")
        to.mark(ARRIVING)

    def finish(self) -> None:
        self._to.write(self._source.read(self._corner))
        self._to.unmark(ARRIVING | UNFENCED)
        self.barrier.receive(self._to.nbytes)


class _Leaving:
    """A copy from shared memory."""

    def __init__(self, to: Descriptor, corner: list[int], source: SharedMemory) -> None:
        self._to, self._corner, self._source = to, corner, source
        self._box: NDArray | None = None
        to.check(source)
        source.read("a copy")
        source.check_fenced("a copy")
        source.add_reader()

    def read(self) -> None:
        self._box = self._source.values()
        self._source.remove_reader()

    def write(self) -> None:
        assert self._box is not None
        self._to.write(self._corner, self._box)


def _corner(at: Sequence[Any]) -> list[int]:
    return [int(x) for x in at]


def async_load(
    source: Descriptor, at: Sequence[Any], barrier: SharedMemory, to: SharedMemory, pred: Any = True
) -> None:
    if pred:
        barrier.check_fenced("a copy")
        copy = _Arriving(source, _corner(at), barriers.at(barrier), to)
        current().arriving.append(copy)
    current().pause()


def async_store(to: Descriptor, at: Sequence[Any], source: SharedMemory) -> None:
    current().running.stores.append(_Leaving(to, _corner(at), source))
    current().pause()


def store_wait(pendings: int) -> None:
    """Until all but so many of this partition's copies have read shared memory."""
    program = current()
    stores = program.running.stores
    while len(stores) > pendings:
        copy = stores.popleft()
        copy.read()
        program.leaving.append(copy)
