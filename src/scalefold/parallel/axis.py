"""The axis object: how the model's blocks see Dynamic Axial Parallelism (DAP).

DAP splits one sample over a group of ranks along one of the two axes of a representation
(Cheng et al. 2022, FastFold; Zhu et al. 2024, ScaleFold). Blocks are written for a tensor that may
be sharded and call the axis where they change the dimension that they work along. With one process
every call is the identity, so one forward serves both.

Regimes of gradients
--------------------
A tensor is *sharded* (each rank holds a slice, and differentiates through its slice only) or
*replicated* (all ranks hold the same, and compute the same gradient). Parameters that act in
the sharded region get partial gradients, which are summed over the group; parameters in the
replicated region (`AlphaFold.replicated_modules`) get the whole gradient on each rank, which must
not be summed.

=====================  ==============================  ====================================
operation              forward                         backward
=====================  ==============================  ====================================
`split`                own slice of a replicated       zeros outside the own slice: what was
                       tensor                          computed before it joins the sharded regime
`switch`               all-to-all                      all-to-all
`gather_to_sharded`    all-gather, used by each rank   reduce-scatter
                       for its own shard
`reduce_to_sharded`    reduce-scatter of partial sums  all-gather
`gather_to_replicated`  all-gather, used alike by all   own slice (a reduce-scatter would multiply
                       ranks                           gradients by the size of the group)
=====================  ==============================  ====================================

Every communicating operation returns a handle: what is computed between the call and
``wait()`` overlaps with the exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Pending(Protocol):
    """A result that may still be on its way."""

    def wait(self) -> Tensor:
        """Return the result; to be called exactly once."""
        ...


class Axis(Protocol):
    """Exchange between the ranks that share one sample. ``dim`` counts all dimensions, B is 0."""

    @property
    def size(self) -> int:
        """Number of ranks that share a sample."""
        ...

    def split(self, x: Tensor, dim: int) -> Tensor:
        """Own slice along ``dim`` of a tensor that all ranks hold in full."""
        ...

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """From a tensor sharded along ``sharded`` to the same tensor sharded along ``to``."""
        ...

    def gather_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """The whole of a tensor sharded along ``dim``, for use in sharded computation."""
        ...

    def reduce_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """The own slice along ``dim`` of the sum over ranks of full-size partial results."""
        ...

    def gather_to_replicated(self, x: Tensor, dim: int) -> Pending:
        """The whole of a tensor sharded along ``dim``, for computation that all ranks repeat."""
        ...


@dataclass(frozen=True)
class Ready:
    """A handle on a result that is already here."""

    value: Tensor

    def wait(self) -> Tensor:
        """Return the result."""
        return self.value


class IdentityAxis:
    """The axis of a sample that one process holds whole: nothing moves."""

    size = 1

    def split(self, x: Tensor, dim: int) -> Tensor:
        """Return ``x``."""
        return x

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """Return ``x``, ready."""
        return Ready(x)

    def gather_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """Return ``x``, ready."""
        return Ready(x)

    def reduce_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """Return ``x``, ready."""
        return Ready(x)

    def gather_to_replicated(self, x: Tensor, dim: int) -> Pending:
        """Return ``x``, ready."""
        return Ready(x)
