"""Exchange between the GPUs of a node that write to each other's memory, over NVLink.

See `scalefold_kernels.ops.exchange`. The memory that others can write to is torch's symmetric
memory. It cannot be made while a CUDA graph is captured, so the run before the capture makes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from scalefold.ops.kernels import exchange_kernels, why_not
from scalefold.parallel.axis import Pending, Ready
from scalefold.parallel.ranks import MeshRanks

if TYPE_CHECKING:
    from scalefold.ops.kernels import Inbox, Parts

_LEAST_BYTES: Final = 2**20
"""Smallest size of an inbox's slot."""

_NATIVE_ATOMICS: Final = 3
"""The driver's number of the property that peers see each other's atomic operations."""


class Push:
    """The `Exchange` of GPUs that write to each other's memory.

    Parameters
    ----------
    rank, size : int
        This rank, and number of those that share a sample.
    new_inbox : callable
        Makes an `Inbox` with slots of a given number of bytes; all ranks make it together.
    """

    name = "push"

    def __init__(self, rank: int, size: int, new_inbox: Callable[[int], Inbox]) -> None:
        self.rank, self.size = rank, size
        self._new_inbox = new_inbox
        self._inboxes: dict[int, Inbox] = {}
        self._kernels = exchange_kernels()

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """See `Exchange`."""
        shape = list(x.shape)
        shape[sharded] *= self.size
        shape[to] //= self.size
        parts = self._kernels.Parts.of_switch(x.shape, sharded, to, self.size)
        return self._exchanged(x, shape, parts)

    def gather(self, x: Tensor, dim: int) -> Pending:
        """See `Exchange`."""
        shape = list(x.shape)
        shape[dim] *= self.size
        return self._exchanged(x, shape, self._kernels.Parts.of_gather(x.shape, dim, self.size))

    def reduce(self, x: Tensor, dim: int) -> Pending:
        """See `Exchange`."""
        shape = list(x.shape)
        shape[dim] //= self.size
        parts = self._kernels.Parts.of_reduce(x.shape, dim, self.size)
        return self._exchanged(x, shape, parts, sum_up=True)

    def _exchanged(
        self, x: Tensor, shape: list[int], parts: Parts, *, sum_up: bool = False
    ) -> Pending:
        out = x.new_empty(shape)
        inbox = self._inbox(max(x.nbytes, out.nbytes))
        self._kernels.exchange(inbox, x, out, parts, sum_up=sum_up)
        return Ready(out)

    def _inbox(self, num_bytes: int) -> Inbox:
        """One for each power of two, so that there are few and none is made in vain."""
        slot_bytes = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        if slot_bytes not in self._inboxes:
            self._inboxes[slot_bytes] = self._new_inbox(slot_bytes)
        return self._inboxes[slot_bytes]


def why_not_push(ranks: MeshRanks, device: torch.device) -> str | None:
    """Why these ranks cannot write to each other's memory, or None. All of them make this call."""
    return next(filter(None, ranks.all_gather_object(_obstacle(ranks, device))), None)


def _obstacle(ranks: MeshRanks, device: torch.device) -> str | None:
    devices = ranks.all_gather_object(device.index)
    if (reason := why_not(device)) is not None:
        return reason
    driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    for pair in permutations(devices, 2):
        failed = driver.cuDeviceGetP2PAttribute(ctypes.byref(found), _NATIVE_ATOMICS, *pair)
        if failed or not found.value:
            return f"NVLink does not connect GPUs {pair[0]} and {pair[1]}"
    return None


def push_between(ranks: MeshRanks, device: torch.device) -> Push:
    """The exchange of these ranks, each of which has one of the node's GPUs."""
    symmetric: Any = import_module("torch.distributed._symmetric_memory")
    kernels = exchange_kernels()

    def new_inbox(slot_bytes: int) -> Inbox:
        num_bytes = kernels.Inbox.bytes_for(slot_bytes, ranks.size)
        memory = symmetric.empty(num_bytes, dtype=torch.uint8, device=device).zero_()
        peers = symmetric.rendezvous(memory, ranks.group)
        torch.cuda.synchronize(device)
        ranks.barrier()  # before a peer sends
        offset = memory.data_ptr() - peers.buffer_ptrs[ranks.rank]
        addresses = torch.tensor(peers.buffer_ptrs, device=device) + offset
        counts = torch.zeros(kernels.ctas("cuda"), dtype=torch.int64, device=device)
        return kernels.Inbox(memory, addresses, ranks.rank, slot_bytes, counts)

    return Push(ranks.rank, ranks.size, new_inbox)
