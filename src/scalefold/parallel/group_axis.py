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

from scalefold.parallel.axis import Pending, Ready

Start = Callable[[Tensor], Pending]


class Exchange(Protocol):
    """What ranks that share a sample do with contiguous tensors; dimensions count all."""

    name: str
    """As in ``parallel.exchange``."""
    rank: int
    size: int

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """From a tensor sharded along ``sharded`` to the same sharded along ``to``."""
        ...

    def gather(self, x: Tensor, dim: int) -> Pending:
        """All ranks' tensors, side by side along ``dim``."""
        ...

    def reduce(self, x: Tensor, dim: int) -> Pending:
        """The own part along ``dim`` of the sum over ranks."""
        ...


class GroupAxis:
    """The `Axis` of the ranks of a group, each with an equal share of rows and residues."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.size, self.exchange = exchange.size, exchange.name

    def split(self, x: Tensor, dim: int) -> Tensor:
        """See `Axis`; the slice is contiguous."""
        share = self._share(x, dim)
        return x.narrow(dim, self._exchange.rank * share, share).contiguous()

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        """See `Axis`."""
        self._share(x, to)
        ordered = _InMemoryOrder.of(x)
        sharded, to = ordered.place(sharded), ordered.place(to)
        return ordered.exchange(self._switching(sharded, to), self._switching(to, sharded))

    def gather_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        ordered = _InMemoryOrder.of(x)
        dim = ordered.place(dim)
        return ordered.exchange(self._gathering(dim), self._reducing(dim))

    def reduce_to_sharded(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        self._share(x, dim)
        ordered = _InMemoryOrder.of(x)
        dim = ordered.place(dim)
        return ordered.exchange(self._reducing(dim), self._gathering(dim))

    def gather_to_replicated(self, x: Tensor, dim: int) -> Pending:
        """See `Axis`."""
        ordered = _InMemoryOrder.of(x)
        dim = ordered.place(dim)

        def own(gradient: Tensor) -> Pending:
            return Ready(self.split(gradient, dim))

        return ordered.exchange(self._gathering(dim), own)

    def _switching(self, sharded: int, to: int) -> Start:
        return lambda x: self._exchange.switch(x.contiguous(), sharded, to)

    def _gathering(self, dim: int) -> Start:
        return lambda x: self._exchange.gather(x.contiguous(), dim)

    def _reducing(self, dim: int) -> Start:
        return lambda x: self._exchange.reduce(x.contiguous(), dim)

    def _share(self, x: Tensor, dim: int) -> int:
        if x.shape[dim] % self.size:
            raise ValueError(
                f"dimension {dim} of {tuple(x.shape)} cannot be divided among {self.size} ranks: "
                "pad the features to a multiple, see features.padding"
            )
        return x.shape[dim] // self.size


@dataclass(eq=False)
class _State:
    """What both halves of an operation know: its exchanges, and the one that is on its way."""

    forward: Start
    backward: Start
    pending: Pending | None = None

    def arrived(self) -> Tensor:
        """Wait for what is on its way."""
        assert self.pending is not None
        pending, self.pending = self.pending, None
        return pending.wait()


@dataclass(frozen=True, eq=False)
class _InMemoryOrder:
    """A tensor with its dimensions in the order of memory.

    Kernels pass each other views, channels first in memory: what is exchanged keeps its layout.
    """

    tensor: Tensor
    order: list[int]

    @staticmethod
    def of(x: Tensor) -> _InMemoryOrder:
        order = sorted(range(x.ndim), key=x.stride().__getitem__, reverse=True)
        return _InMemoryOrder(x.permute(order), order)

    def place(self, dim: int) -> int:
        """Where a dimension of the tensor as it was is now."""
        return self.order.index(dim)

    def exchange(self, forward: Start, backward: Start) -> Pending:
        """Start the exchange ``forward``, whose gradient's exchange is ``backward``."""
        state = _State(forward, backward)
        back = [self.place(dim) for dim in range(len(self.order))]
        return _Handle(_Send.apply(self.tensor, state), state, back)


@dataclass(frozen=True)
class _Handle:
    token: Tensor
    state: _State
    order: list[int]

    def wait(self) -> Tensor:
        """Return the result."""
        result: Tensor = _Receive.apply(self.token, self.state)
        return result.permute(self.order)


class _Send(torch.autograd.Function):
    """First half: sends ``x``. A token links the halves in the graph of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: _State) -> Tensor:
        ctx.state = state
        state.pending = state.forward(x)
        return x.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.state.arrived(), None


class _Receive(torch.autograd.Function):
    """Second half: waits for the result."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, state: _State) -> Tensor:
        ctx.state = state
        return state.arrived()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.state.pending = ctx.state.backward(gradient)
        return gradient.new_empty(()), None
