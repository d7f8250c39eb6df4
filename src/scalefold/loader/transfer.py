"""Features through a pipe, without copies that can be avoided.

Array contents are written to the pipe as they lie in memory and read into their final place
(pickle protocol 5, out-of-band buffers): three to four times faster than plain pickling.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scalefold.features.contract import Features


def send_passes(connection: Connection, passes: Sequence[Features]) -> None:
    """Send the passes of a sample; a tensor that passes share is sent once."""
    arrays: dict[int, NDArray[Any]] = {}
    converted = [
        {
            name: arrays.setdefault(id(tensor), np.ascontiguousarray(tensor.numpy()))
            for name, tensor in features.items()
        }
        for features in passes
    ]
    buffers: list[pickle.PickleBuffer] = []
    frame = pickle.dumps(converted, protocol=5, buffer_callback=buffers.append)
    contents = [buffer.raw() for buffer in buffers]
    connection.send((frame, [content.nbytes for content in contents]))
    for content in contents:
        if content.nbytes:
            connection.send_bytes(content)


def receive_passes(connection: Connection, message: tuple[bytes, Sequence[int]]) -> list[Features]:
    """Receive what :func:`send_passes` sends; ``message`` is what it sent first."""
    frame, sizes = message
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        if buffer.nbytes:
            connection.recv_bytes_into(buffer)
    tensors: dict[int, torch.Tensor] = {}
    return [
        {
            name: tensors.setdefault(id(array), torch.from_numpy(array))
            for name, array in features.items()
        }
        for features in pickle.loads(frame, buffers=buffers)
    ]
