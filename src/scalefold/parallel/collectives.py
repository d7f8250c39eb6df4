"""Exchange between ranks that share a sample by the collectives of NCCL, or of gloo on CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from scalefold.parallel.axis import Pending


class Collecting(Protocol):
    """The collectives, see `MeshRanks`."""

    rank: int
    size: int

    def all_to_all(self, parts: Tensor) -> Pending:
        """Exchange the parts (size, ...)."""
        ...

    def all_gather(self, x: Tensor) -> Pending:
        """All ranks' tensors (size, ...)."""
        ...

    def reduce_scatter(self, parts: Tensor) -> Pending:
        """Sum over the ranks of this rank's part."""
        ...


class Collectives:
    """The `Exchange` that lays parts one after the other for collectives."""

    name = "collectives"

    def __init__(self, ranks: Collecting) -> None:
        self._ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """See `Exchange`."""
        return _SideBySide(self._ranks.all_to_all(self._apart(x, to)), sharded)

    def gather(self, x: Tensor, dim: int) -> Pending:
        """See `Exchange`."""
        return _SideBySide(self._ranks.all_gather(x), dim)

    def reduce(self, x: Tensor, dim: int) -> Pending:
        """See `Exchange`."""
        return self._ranks.reduce_scatter(self._apart(x, dim))

    def _apart(self, x: Tensor, dim: int) -> Tensor:
        """Equal parts along ``dim``, one after the other: (size, ...)."""
        return x.unflatten(dim, (self.size, -1)).movedim(dim, 0).contiguous()


@dataclass(frozen=True, eq=False)
class _SideBySide:
    """Parts (size, ...) that are to be side by side along ``dim``."""

    parts: Pending
    dim: int

    def wait(self) -> Tensor:
        """Return the result."""
        return self.parts.wait().movedim(0, self.dim).flatten(self.dim, self.dim + 1)
