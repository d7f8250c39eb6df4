"""Copies of many tensors into one flat buffer, in one launch.

``torch._foreach_copy_`` passes tensors as arguments of kernels, some dozens a launch. Here a table
in the device's memory says where they are, so that thousands are one launch, and small ones fill
the GPU together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scalefold_kernels.backends import TRITON, Backends
from scalefold_kernels.tiles import config_for

_BACKENDS = Backends("gather", __package__, TRITON)

_ALIGNMENT = 8
"""Places are multiples of this many elements, as the kernel assumes."""


class Gather:
    """Copies contiguous tensors of one type into their places of a flat buffer.

    Each call has a table of its own in pinned memory, which a captured graph reads again at each
    replay: it lives as long as this object. ``places`` say where each tensor goes, in elements of
    the flat ``buffer``, and ``sizes`` how many it has. Raises ValueError where a place is no
    multiple of 8, or tensors differ from the plan in number or type.
    """

    def __init__(self, buffer: Tensor, places: Sequence[int], sizes: Sequence[int]) -> None:
        if any(place % _ALIGNMENT for place in places):
            raise ValueError(f"gather: places must be multiples of {_ALIGNMENT} elements")
        self._buffer, self._num_tensors = buffer, len(sizes)
        self._kernels = _BACKENDS.choose("gather", buffer.device)
        self._config = config_for("gather", buffer, elements=buffer.numel())
        block = self._config["BLOCK"]
        pieces = [
            (number, first, place + first, min(block, size - first))
            for number, (place, size) in enumerate(zip(places, sizes, strict=True))
            for first in range(0, size, block)
        ]
        self._pieces = torch.tensor(pieces, dtype=torch.int64, device=buffer.device)
        self._sources = torch.empty(len(sizes), dtype=torch.int64, device=buffer.device)
        self._captured: list[Tensor] = []
        self._table = self._new_table()

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Copy; the n-th tensor to the n-th place."""
        if len(tensors) != self._num_tensors:
            raise ValueError(f"{len(tensors)} tensors for {self._num_tensors} places")
        if not self._num_tensors:
            return
        tensors = [tensor.contiguous() for tensor in tensors]
        wrong = {t.dtype for t in tensors} - {self._buffer.dtype}
        if wrong:
            raise ValueError(f"tensors of {wrong} for a buffer of {self._buffer.dtype}")
        start, width = self._buffer.data_ptr(), self._buffer.element_size()
        places = torch.tensor([(t.data_ptr() - start) // width for t in tensors])
        if self._buffer.is_cuda and torch.cuda.is_current_stream_capturing():
            # Memory cannot be pinned now: the table was made by the run before the capture.
            if not len(self._table):
                raise RuntimeError("gather: a capture needs a run before it, each one of its own")
            table, self._table = self._table, self._table.new_empty(0)
            self._captured.append(table)
        else:
            table, self._table = self._new_table(), self._new_table()
        table.copy_(places)
        self._sources.copy_(table, non_blocking=True)
        self._kernels.gather(self._buffer, self._sources, self._pieces, self._config)

    def _new_table(self) -> Tensor:
        pinned = self._buffer.is_cuda
        return torch.empty(self._num_tensors, dtype=torch.int64, pin_memory=pinned)
