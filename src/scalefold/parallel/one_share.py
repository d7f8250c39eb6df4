"""An axis to measure one rank's share alone: shapes and memory are right, values are not."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.parallel.axis import Pending, Ready


class OneShareAxis:
    """An `Axis` that copies what it has where the other ranks' parts would be: values are wrong.

    Parameters
    ----------
    size : int
        Ranks that would share a sample.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def split(self, x: Tensor, dim: int) -> Tensor:
        """See `Axis`."""
        return x.narrow(dim, 0, x.shape[dim] // self.size).contiguous()

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """See `Axis`."""
        return self.gather_to_sharded(self.split(x, to), sharded)

    def gather_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        return Ready(torch.cat([x] * self.size, dim))

    def reduce_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        return Ready(self.split(x, dim))

    def gather_to_replicated(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        return self.gather_to_sharded(x, dim)
