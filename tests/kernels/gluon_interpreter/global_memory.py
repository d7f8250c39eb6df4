"""Global memory: what the arguments of a launch point to. Nothing else may be touched."""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from tests.kernels.gluon_interpreter.faults import KernelError
from tests.kernels.gluon_interpreter.numbers import MEMORY, from_memory, itemsize, to_memory


def bytes_of(x: torch.Tensor) -> NDArray:
    """From its first element to the end of its memory."""
    storage = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
    return storage.numpy()[x.data_ptr() - storage.data_ptr() :]


def extent(x: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if x.numel() == 0:
        return 0
    steps = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return (steps + 1) * x.element_size()


class GlobalMemory:
    """Loads and stores by address, each within one of the tensors of a launch."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._regions = [(x.data_ptr(), bytes_of(x)[: extent(x)]) for x in tensors]

    def load(
        self, addresses: NDArray, dtype: tl.dtype, mask: NDArray | None, other: NDArray | None
    ) -> NDArray:
        """Elements; without ``other``, all bits are 1 where the mask is not set."""
        shape = addresses.shape
        inside = np.broadcast_to(True if mask is None else mask, shape)
        raw = np.full(shape, 0xFF, np.uint8).repeat(itemsize(dtype)).view(MEMORY[dtype])
        raw = raw.reshape(shape)
        if inside.any():
            elements, at = self._elements(addresses[inside], dtype)
            raw[inside] = elements[at]
        loaded = from_memory(raw, dtype)
        return loaded if other is None else np.where(inside, loaded, other)

    def store(
        self, addresses: NDArray, dtype: tl.dtype, data: NDArray, mask: NDArray | None
    ) -> None:
        inside = np.broadcast_to(True if mask is None else mask, addresses.shape)
        if inside.any():
            elements, at = self._elements(addresses[inside], dtype)
            elements[at] = to_memory(np.broadcast_to(data, addresses.shape)[inside], dtype)

    def _elements(self, addresses: NDArray, dtype: tl.dtype) -> tuple[NDArray, NDArray]:
        """The region that holds all addresses, as elements, and where they are in it."""
        size = itemsize(dtype)
        low, high = int(addresses.min()), int(addresses.max()) + size
        for start, region in self._regions:
            if start <= low and high <= start + len(region):
                if (addresses % size).any():
                    raise KernelError(f"an address is no multiple of the {size} bytes of {dtype}")
                skipped = -start % size
                whole = (len(region) - skipped) // size * size
                elements = region[skipped : skipped + whole].view(MEMORY[dtype])
                return elements, (addresses - start - skipped) // size
        raise KernelError(f"addresses from {low:#x} to {high:#x} are not within one of the tensors")
