"""Objects with tensors in them, sent through a pipe, to a GPU and to other ranks.

The tensors' contents are written to the pipe and read into one block of memory, one after another.
So a single copy takes all of them to a GPU, and a single exchange to other ranks.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT: Final = 256
"""Bytes between the starts of tensors, as torch's allocator has it."""


class _Place(NamedTuple):
    """Where a tensor is in the block, and what it is."""

    start: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Header(NamedTuple):
    """What is sent before the contents."""

    pickled: bytes
    places: list[_Place]
    num_bytes: int


@dataclass(frozen=True, eq=False)
class TensorBlock:
    """An object whose tensors are in one block of memory."""

    header: Header
    block: Tensor

    @staticmethod
    def empty(header: Header, device: torch.device | str = "cpu") -> TensorBlock:
        """Make room for the contents of an object."""
        return TensorBlock(header, torch.empty(header.num_bytes, dtype=torch.uint8, device=device))

    @staticmethod
    def pack(value: Any, device: torch.device | str = "cpu") -> TensorBlock:
        """Copy an object's tensors into a block."""
        header, tensors = _take_apart(value)
        packed = TensorBlock.empty(header, device)
        for place, tensor in zip(header.places, tensors, strict=True):
            _view(packed.block, place).copy_(tensor)
        return packed

    def open(self, device: torch.device) -> Any:
        """Return the object with its tensors on a device.

        From the host to a GPU the copy is queued on the current stream, and the host does not wait
        for it.
        """
        block = self.block
        if device.type == "cuda" and not block.is_cuda:
            pinned = torch.empty_like(block, pin_memory=True)
            pinned.copy_(block)
            block = pinned.to(device, non_blocking=True)
        tensors = [_view(block, place) for place in self.header.places]
        return _Unpickler(self.header.pickled, tensors).load()


class Message(NamedTuple):
    """An object ready to be sent: only the connection can still fail."""

    header: Header
    contents: list[memoryview]

    @staticmethod
    def of(value: Any) -> Message:
        """Take an object apart; its tensors, on the CPU, must stay as they are until it is sent.

        A tensor that the object has twice is sent once.
        """
        header, tensors = _take_apart(value)
        return Message(header, [_bytes(tensor) for tensor in tensors])


def send(connection: Connection, header: Any, message: Message) -> None:
    """Send a message.

    After an incomplete message the connection must be closed: the next message would be read as the
    missing part.

    Parameters
    ----------
    header : object
        Anything that helps the receiver to know what comes.
    """
    connection.send((header, message.header))
    for content in message.contents:
        _write(connection.fileno(), content)


def receive(connection: Connection, header: Header) -> TensorBlock:
    """Receive the contents of a message, once its headers are known."""
    block = np.empty(header.num_bytes, np.uint8)
    content = block.data
    for place in header.places:
        _read(connection.fileno(), content[place.start : place.start + place.num_bytes])
    return TensorBlock(header, torch.from_numpy(block))


class _Pickler(pickle.Pickler):
    """Leaves tensors out, and keeps a list of them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        number = self._numbers.setdefault(id(value), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(value)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._tensors = tensors

    def persistent_load(self, number: Any) -> Tensor:
        return self._tensors[number]


def _take_apart(value: Any) -> tuple[Header, list[Tensor]]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    places, end = [], 0
    for tensor in pickler.tensors:
        place = _Place(end, tensor.nbytes, tuple(tensor.shape), tensor.dtype)
        places.append(place)
        end += math.ceil(place.num_bytes / _ALIGNMENT) * _ALIGNMENT
    return Header(file.getvalue(), places, end), pickler.tensors


def _view(block: Tensor, place: _Place) -> Tensor:
    part = block[place.start : place.start + place.num_bytes]
    return part.view(place.dtype).view(place.shape)


def _bytes(tensor: Tensor) -> memoryview:
    # A contiguous tensor of one element or none may have any stride, which `view` refuses.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    array: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return array.data


# Connection.send_bytes and recv_bytes_into copy the contents once more, in small pieces.


def _write(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _read(descriptor: int, content: memoryview) -> None:
    while content:
        count = os.readv(descriptor, [content])
        if not count:
            raise EOFError
        content = content[count:]
