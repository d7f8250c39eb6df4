"""The axis of a sample that several ranks share: what its operations exchange, and when.

Both halves of an operation are nodes of autograd, so backward mirrors forward: the gradient's
exchange starts where the result was waited for, and is waited for where the operation began. What
was computed between the halves is differentiated between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from scalefold.parallel.axis import Pending

Finish = Callable[[], Tensor]
Start = Callable[[Tensor], Finish]
"""Begins an exchange; the function that it returns waits for the result."""


class Exchanging(Protocol):
    """What the axis needs of the ranks that share a sample, see `MeshRanks`."""

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


class GroupAxis:
    """The `Axis` of the ranks of a group, each with an equal share of rows and residues.

    Parameters
    ----------
    ranks : Exchanging
        Those that share a sample.
    """

    def __init__(self, ranks: Exchanging) -> None:
        self._ranks = ranks
        self.size = ranks.size

    def split(self, x: Tensor, dim: int) -> Tensor:
        """See `Axis`; the slice is contiguous."""
        share = self._share(x, dim)
        return x.narrow(dim, self._ranks.rank * share, share).contiguous()

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """See `Axis`."""
        self._share(x, to)
        laid = _Laid.of(x)
        sharded, to = laid.place(sharded), laid.place(to)
        return laid.begun(self._switching(sharded, to), self._switching(to, sharded))

    def gather_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        laid = _Laid.of(x)
        dim = laid.place(dim)
        return laid.begun(self._gathering(dim), self._reducing(dim))

    def reduce_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        self._share(x, dim)
        laid = _Laid.of(x)
        dim = laid.place(dim)
        return laid.begun(self._reducing(dim), self._gathering(dim))

    def gather_to_replicated(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        laid = _Laid.of(x)
        dim = laid.place(dim)

        def own(gradient: Tensor) -> Finish:
            return lambda: self.split(gradient, dim)

        return laid.begun(self._gathering(dim), own)

    def _switching(self, sharded: int, to: int) -> Start:
        def start(x: Tensor) -> Finish:
            pending = self._ranks.all_to_all(_apart(x, to, self.size))
            return lambda: _together(pending.wait(), sharded)

        return start

    def _gathering(self, dim: int) -> Start:
        def start(x: Tensor) -> Finish:
            pending = self._ranks.all_gather(x.contiguous())
            return lambda: _together(pending.wait(), dim)

        return start

    def _reducing(self, dim: int) -> Start:
        return lambda x: self._ranks.reduce_scatter(_apart(x, dim, self.size)).wait

    def _share(self, x: Tensor, dim: int) -> int:
        if x.shape[dim] % self.size:
            raise ValueError(
                f"dimension {dim} of {tuple(x.shape)} cannot be divided among {self.size} ranks: "
                "pad the features to a multiple, see features.shares"
            )
        return x.shape[dim] // self.size


def _apart(x: Tensor, dim: int, size: int) -> Tensor:
    """Equal parts along ``dim``, one after the other: (size, ...)."""
    return x.unflatten(dim, (size, -1)).movedim(dim, 0).contiguous()


def _together(parts: Tensor, dim: int) -> Tensor:
    """The inverse: parts (size, ...) side by side along ``dim``."""
    return parts.movedim(0, dim).flatten(dim, dim + 1)


@dataclass(eq=False)
class _Exchange:
    """One use of an operation: how it begins in forward and backward, and what is on its way."""

    forward: Start
    backward: Start
    finish: Finish | None = None

    def finished(self) -> Tensor:
        """Wait for what is on its way."""
        assert self.finish is not None
        finish, self.finish = self.finish, None
        return finish()


@dataclass(frozen=True, eq=False)
class _Laid:
    """A tensor with its dimensions in the order of memory.

    Kernels pass each other views, channels first in memory: what is exchanged keeps its layout.
    """

    tensor: Tensor
    order: list[int]

    @staticmethod
    def of(x: Tensor) -> _Laid:
        order = sorted(range(x.ndim), key=x.stride().__getitem__, reverse=True)
        return _Laid(x.permute(order), order)

    def place(self, dim: int) -> int:
        """Where a dimension of the tensor as it was is now."""
        return self.order.index(dim)

    def begun(self, forward: Start, backward: Start) -> Pending:
        """Begin an exchange."""
        exchange = _Exchange(forward, backward)
        back = [self.place(dim) for dim in range(len(self.order))]
        return _Begun(_Begin.apply(self.tensor, exchange), exchange, back)


@dataclass(frozen=True)
class _Begun:
    token: Tensor
    exchange: _Exchange
    order: list[int]

    def wait(self) -> Tensor:
        """Return the result."""
        result: Tensor = _End.apply(self.token, self.exchange)
        return result.permute(self.order)


class _Begin(torch.autograd.Function):
    """First half: sends ``x``. A token links the halves in the graph of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: _Exchange) -> Tensor:
        ctx.exchange = exchange
        exchange.finish = exchange.forward(x)
        return x.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.finished(), None


class _End(torch.autograd.Function):
    """Second half: waits for the result."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, exchange: _Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.finished()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        exchange = ctx.exchange
        exchange.finish = exchange.backward(gradient)
        return gradient.new_empty(()), None
