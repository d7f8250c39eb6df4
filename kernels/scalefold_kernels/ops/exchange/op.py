"""Exchange of tensors between GPUs that can write to each other's memory.

Collectives of libraries take contiguous tensors, so each needs copies before and after it. Here one
kernel reads a rank's parts where they are, writes them to the memory of the others, waits for
theirs, and lays them out as the result has them. Nothing is returned to the host, so CUDA graphs
may capture it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from scalefold_kernels.backends import TRITON, Backends

_BACKENDS = Backends("exchange", __package__, TRITON)

_CTAS = 208
"""CTAs in a launch. All of them run at once: two on each SM of an A100 or a newer GPU. No table has
it, as an inbox has a flag of each, and all ranks must have as many."""


@dataclass(frozen=True, eq=False)
class Inbox:
    """What a rank's peers write to. All ranks make the same exchanges in the same order."""

    memory: Tensor  # bytes: two slots, then flags; zeros before the first exchange
    addresses: Tensor  # of all ranks' memory, as this rank sees it; (size,), int64
    rank: int  # this one
    slot_bytes: int  # what one exchange brings at most
    counts: Tensor  # exchanges that each CTA has made; int64

    @staticmethod
    def bytes_for(slot_bytes: int, size: int) -> int:
        """Bytes of an inbox's memory, with slots of ``slot_bytes``, for ``size`` ranks."""
        return 2 * slot_bytes + 8 * size * _CTAS

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.addresses)


def ctas(device_type: str) -> int:
    """CTAs of a launch; in the interpreter few."""
    return _CTAS if device_type == "cuda" else 2


@dataclass(frozen=True)
class Parts:
    """Where the parts of a tensor are: A x D x B runs of contiguous elements, by strides."""

    rows: tuple[int, int, int]  # A, D, B
    run: int  # contiguous elements
    x_strides: tuple[int, int, int]  # of the rows in what is sent
    out_strides: tuple[int, int, int]  # of the rows in what is received
    x_part: int  # from one rank's part to the next one's in what is sent
    out_part: int  # the same in what is received

    @staticmethod
    def of_switch(shape: Sequence[int], sharded: int, to: int, size: int) -> Parts:
        """A tensor of this shape, sharded along ``sharded``, is to be sharded along ``to``."""
        part = [n // size if dim == to else n for dim, n in enumerate(shape)]
        result = [n * size if dim == sharded else n for dim, n in enumerate(part)]
        first, second = sorted((sharded, to))

        def strides(of: Sequence[int]) -> tuple[int, int, int]:
            return prod(of[first:]), prod(of[first + 1 :]), prod(of[second:])

        return Parts(
            rows=(prod(part[:first]), part[first], prod(part[first + 1 : second])),
            run=prod(part[second:]),
            x_strides=strides(shape),
            out_strides=strides(result),
            x_part=part[to] * prod(shape[to + 1 :]),
            out_part=part[sharded] * prod(result[sharded + 1 :]),
        )

    @staticmethod
    def of_gather(shape: Sequence[int], dim: int, size: int) -> Parts:
        """Tensors of this shape are to be side by side along ``dim``."""
        run = prod(shape[dim:])
        return Parts((prod(shape[:dim]), 1, 1), run, (run, 0, 0), (size * run, 0, 0), 0, run)

    @staticmethod
    def of_reduce(shape: Sequence[int], dim: int, size: int) -> Parts:
        """Each rank is to have its part along ``dim`` of the sum of tensors of this shape."""
        run = prod(shape[dim:]) // size
        return Parts((prod(shape[:dim]), 1, 1), run, (size * run, 0, 0), (run, 0, 0), run, 0)


def exchange(inbox: Inbox, x: Tensor, out: Tensor, parts: Parts, *, sum_up: bool) -> None:
    """Send the others their parts of ``x``; put those that come in ``out``, or their sum.

    Sums are in float32, in the same order each time. A rank that does not answer in a quarter of
    an hour ends this one with CUDA's error of a failed assertion. ``x`` and ``out`` are contiguous
    and of one type. Raises ValueError where the inbox's slots are too small.
    """
    needed = inbox.size * prod(parts.rows) * parts.run * x.element_size()
    if needed > inbox.slot_bytes:
        raise ValueError(f"exchange: {needed} bytes for a slot of {inbox.slot_bytes}")
    _BACKENDS.choose("exchange", x.device).exchange(inbox, x, out, parts, sum_up)
