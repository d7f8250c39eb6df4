"""Buffers that wait in the host's memory from update to update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

_PIECE: Final = 2**24
"""Elements that are on the device at a time: 64 MiB of float32."""


def to_host(buffer: Tensor) -> Tensor:
    """Copy a buffer to the host, where a GPU reads and writes it by itself."""
    return torch.empty_like(buffer, device="cpu", pin_memory=buffer.is_cuda).copy_(buffer)


def on_device(
    buffers: Sequence[Tensor], device: torch.device
) -> Iterator[tuple[slice, Sequence[Tensor]]]:
    """Yield buffers of one length in pieces on a device, to be changed in place.

    Those that are there already come whole. Nothing waits for the copies to the host and back.
    """
    if buffers[0].device == device:
        yield slice(None), buffers
        return
    for start in range(0, len(buffers[0]), _PIECE):
        piece = slice(start, start + _PIECE)
        here = [buffer[piece].to(device, non_blocking=True) for buffer in buffers]
        yield piece, here
        for buffer, changed in zip(buffers, here, strict=True):
            buffer[piece].copy_(changed, non_blocking=True)
