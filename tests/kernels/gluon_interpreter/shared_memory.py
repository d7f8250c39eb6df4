"""Shared memory: views of buffers of bytes, and what is under way to and from each byte.

Copies and products that a GPU makes by the way are begun and later finished. In between, nobody may
read what is being written, nor write what is being written or read. What threads store is not seen
by TMA and the tensor cores before a fence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from tests.kernels.gluon_interpreter.faults import KernelError
from tests.kernels.gluon_interpreter.numbers import MEMORY, from_memory, itemsize, to_memory
from tests.kernels.gluon_interpreter.program import current
from tests.kernels.gluon_interpreter.tensor import Tensor
from triton.experimental.gluon import language as gl

UNFENCED = 1
"""Mark of a byte that threads stored, with no fence since."""

ARRIVING = 2
"""Mark of a byte that a copy is writing."""

READER = 4
"""What each copy and product that reads a byte adds to its marks."""

NOWHERE = -1
"""Of elements beyond the end."""

NEVER_WRITTEN = 0xFF
"""Bytes of new memory: NaN, or -1."""


class _Buffer:
    """What is allocated at a time: bytes, and as many marks."""

    def __init__(self, size: int) -> None:
        self._data = np.full(size, NEVER_WRITTEN, np.uint8)
        self._marks = np.zeros(size, np.uint8)
        self._views: dict[Any, tuple[NDArray, NDArray]] = {}

    def elements(self, dtype: tl.dtype) -> tuple[NDArray, NDArray]:
        """As elements of a type, and numbers as wide with the marks of their bytes."""
        if dtype not in self._views:
            element = np.dtype(MEMORY[dtype])
            self._views[dtype] = self._data.view(element), self._marks.view(f"u{element.itemsize}")
        return self._views[dtype]


class SharedMemory:
    """A view: of which element of the buffer each of its own is."""

    def __init__(self, buffer: _Buffer, dtype: tl.dtype, places: NDArray, layout: Any) -> None:
        self.dtype, self.layout = dtype, layout
        self._buffer, self._places = buffer, places
        self._data, self._marks = buffer.elements(dtype)
        # The same mark for each byte of an element.
        self._bytes = int.from_bytes(b"\x01" * itemsize(dtype), "little")

    @classmethod
    def new(cls, dtype: tl.dtype, shape: Sequence[int], layout: Any) -> SharedMemory:
        buffer = _Buffer(math.prod(shape) * itemsize(dtype))
        return cls(buffer, dtype, _order(shape, dtype, layout), layout)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._places.shape

    @property
    def nbytes(self) -> int:
        return self._places.size * itemsize(self.dtype)

    @property
    def address(self) -> tuple[_Buffer, int]:
        """Of the first byte."""
        return self._buffer, int(self._places.flat[0]) * itemsize(self.dtype)

    def _view(self, places: NDArray) -> SharedMemory:
        return SharedMemory(self._buffer, self.dtype, places, self.layout)

    def index(self, place: Any) -> SharedMemory:
        """One beyond the end is nowhere: an error for those who look at what is there."""
        place = int(place)
        if 0 <= place < len(self._places):
            return self._view(self._places[place, ...])
        return self._view(np.full_like(self._places[0, ...], NOWHERE))

    def slice(self, start: int, length: int, dim: int = 0) -> SharedMemory:
        if not 0 <= start <= start + length <= self.shape[dim]:
            raise KernelError(f"{start} to {start + length} of dimension {dim} of {self.shape}")
        return self._view(self._places[(slice(None),) * dim + (slice(start, start + length),)])

    def permute(self, order: Sequence[int]) -> SharedMemory:
        return self._view(self._places.transpose(order))

    def reshape(self, shape: Sequence[int]) -> SharedMemory:
        return self._view(self._places.reshape(shape))

    def reinterpret(self, dtype: tl.dtype, shape: Sequence[int], layout: Any) -> SharedMemory:
        """Bytes from where this begins; Triton 3.8 refuses more than this has."""
        buffer, first = self.address
        if math.prod(shape) * itemsize(dtype) > self.nbytes:
            raise KernelError(f"shared memory {self.shape} as {list(shape)}, which is more")
        if first % (8 * max(map(_swizzled_bytes, (self.layout, layout)))):
            raise NotImplementedError(f"part of a swizzled tile {self} as {list(shape)}")
        places = _order(shape, dtype, layout) + first // itemsize(dtype)
        if places.max() >= len(buffer.elements(dtype)[0]):
            raise KernelError(f"beyond its end, shared memory {self.shape} as {list(shape)}")
        return SharedMemory(buffer, dtype, places, layout)

    @property
    def _inside(self) -> NDArray:
        """Where the elements are."""
        if (self._places == NOWHERE).any():
            raise KernelError(f"{self} lies beyond the end of what was allocated")
        return self._places

    def values(self) -> NDArray:
        return from_memory(self._data[self._inside], self.dtype)

    def read(self, who: str) -> NDArray:
        """Values, for a thread, a copy or a product that begins."""
        if self._marked(ARRIVING):
            raise KernelError(f"{who} reads {self} while a copy to it is under way")
        return self.values()

    def check_fenced(self, who: str) -> None:
        if self._marked(UNFENCED):
            raise KernelError(f"{who} reads {self}, which was stored without a fence")

    def check_writable(self, who: str) -> None:
        if self._marked(ARRIVING):
            raise KernelError(f"{who} writes {self} while a copy to it is under way")
        if self._marked(256 - READER):
            raise KernelError(f"{who} writes {self} while it is being read")

    def __str__(self) -> str:
        return f"shared memory {self.dtype} {self.shape}"

    def write(self, data: NDArray) -> None:
        self._data[self._inside] = to_memory(data, self.dtype)

    def mark(self, mark: int) -> None:
        self._marks[self._inside] |= self._of_bytes(mark)

    def unmark(self, mark: int) -> None:
        self._marks[self._inside] &= self._of_bytes(255 - mark)

    def _marked(self, mark: int) -> bool:
        return bool((self._marks[self._inside] & self._of_bytes(mark)).any())

    def add_reader(self) -> None:
        self._marks[self._inside] += self._of_bytes(READER)

    def remove_reader(self) -> None:
        self._marks[self._inside] -= self._of_bytes(READER)

    def _of_bytes(self, mark: int) -> np.generic:
        return self._marks.dtype.type(mark * self._bytes)

    def load(self, layout: Any) -> Tensor:
        return Tensor(self.read("a thread"), self.dtype, layout)

    def store(self, value: Tensor) -> None:
        if (value.shape, value.dtype) != (self.shape, self.dtype):
            raise TypeError(f"{value.dtype} {value.shape} to {self}")
        self.check_writable("a thread")
        self.write(value.data)
        self.note_store()

    def note_store(self) -> None:
        """By a thread: a fence is wanted."""
        self.mark(UNFENCED)
        current().running.unfenced.append(self)


def _swizzled_bytes(layout: Any) -> int:
    """Of a line in which pieces of 16 bytes are mixed; of eight times as many, the pattern."""
    if isinstance(layout, gl.NVMMASharedLayout):
        return max(16, layout.swizzle_byte_width)
    if layout.max_phase > 1:
        raise NotImplementedError(f"another view of {layout}")
    return 1


def _order(shape: Sequence[int], dtype: tl.dtype, layout: Any) -> NDArray:
    """Which element of memory each of a tile is.

    Lines that are wider than a swizzled unit lie in parts: first the first part of all lines. Other
    layouts' swizzles are left out: nobody sees them but who looks at the memory as something else.
    """
    shape, size = tuple(shape), itemsize(dtype)
    places = np.arange(math.prod(shape))
    if not isinstance(layout, gl.NVMMASharedLayout):
        return places.reshape(shape)
    width = min(shape[-1], _swizzled_bytes(layout) // size)
    lines = math.prod(shape[-layout.rank : -1])
    parts = places.reshape(-1, shape[-1] // width, lines, width)
    places = parts.swapaxes(1, 2).reshape(shape) * size
    # Of a pattern of eight lines, each has its pieces of 16 bytes in another order.
    if layout.swizzle_byte_width:
        places ^= places >> 3 & layout.swizzle_byte_width - 16
    return places // size
