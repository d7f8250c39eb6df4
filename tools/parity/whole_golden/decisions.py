"""What a run decides by comparing numbers: recorded, compared, forced.

A number within rounding of a threshold may fall on the other side in float32: a unit before a ReLU,
a clamped error, a clash, a bin. The value or gradient that depends on it then is another one, an
error not of the rounding's size. Forcing float64's decisions on a float32 run shows how much of its
error comes from such numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

State = Tensor
Force = Callable[[State], Tensor]


def _relu(x: Tensor, **_: Any) -> tuple[State, Force]:
    return x.detach() > 0, lambda above: x * above.to(x.dtype)


def _abs(x: Tensor) -> tuple[State, Force]:
    return x.detach() > 0, lambda above: torch.where(above, x, -x)


def _minimum(x: Tensor, y: Tensor) -> tuple[State, Force]:
    return (x <= y).detach(), lambda first: torch.where(first, x, y)


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> tuple[State, Force]:
    state = torch.zeros_like(x, dtype=torch.int8)
    state[x.detach() < (-torch.inf if min is None else min)] = -1
    state[x.detach() > (torch.inf if max is None else max)] = 1

    def force(sides: State) -> Tensor:
        low, high = (0.0 if bound is None else bound for bound in (min, max))
        return torch.where(sides == 0, x, torch.where(sides < 0, low, high).to(x.dtype))

    return state, force


def _constant(function: Any) -> Callable[..., tuple[State, Force]]:
    """A result without gradient is the decision."""

    def decide(*args: Any, **kwargs: Any) -> tuple[State, Force]:
        found = function(*args, **kwargs).detach()
        return found, lambda state: state.to(found.dtype)

    return decide


_DECIDE: dict[Any, tuple[str, Callable[..., tuple[State, Force]]]] = {
    **dict.fromkeys((torch.relu, functional.relu, Tensor.relu), ("relu", _relu)),
    **dict.fromkeys((torch.abs, Tensor.abs), ("abs", _abs)),
    **dict.fromkeys((torch.minimum, Tensor.minimum), ("minimum", _minimum)),
    **dict.fromkeys((torch.clamp, Tensor.clamp), ("clamp", _clamp)),
    **{f: ("bin", _constant(f)) for f in (torch.bucketize, torch.floor, Tensor.floor)},
    **{
        f: ("comparison", _constant(f))
        for name in ("gt", "lt", "ge", "le")
        for f in (getattr(torch, name), getattr(Tensor, name), getattr(Tensor, f"__{name}__"))
    },
}


class _Each(TorchFunctionMode):
    """Calls a function in place of each operation that decides."""

    def __init__(self, function: Callable[[str, State, Force], Tensor]) -> None:
        super().__init__()
        self._function = function
        self._initialise = nn.init.trunc_normal_

    def __enter__(self) -> _Each:
        # Rejection sampling of weights that are overwritten afterwards decides at random.
        nn.init.trunc_normal_ = lambda tensor, *_, **__: tensor
        return super().__enter__()

    def __exit__(self, *given: Any) -> None:
        nn.init.trunc_normal_ = self._initialise
        super().__exit__(*given)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        floating = bool(args) and isinstance(args[0], Tensor) and args[0].is_floating_point()
        if floating and func in _DECIDE:
            kind, decide = _DECIDE[func]
            return self._function(kind, *decide(*args, **kwargs))
        return func(*args, **kwargs)


@dataclass
class Decisions:
    """Of one run, in order."""

    states: list[State] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    @contextmanager
    def recorded(cls) -> Iterator[Decisions]:
        found = cls()

        def keep(kind: str, state: State, force: Force) -> Tensor:
            found.states.append(state)
            found.counts[kind] += state.numel()
            return force(state)

        with _Each(keep):
            yield found

    @contextmanager
    def compared(self) -> Iterator[Counter[str]]:
        """Count by kind what is decided otherwise."""
        flips: Counter[str] = Counter()
        rest = iter(self.states)

        def count(kind: str, state: State, force: Force) -> Tensor:
            flips[kind] += int((state != next(rest)).sum())
            return force(state)

        with _Each(count):
            yield flips

    @contextmanager
    def forced(self) -> Iterator[None]:
        """Decide as recorded."""
        rest = iter(self.states)

        def decide(kind: str, state: State, force: Force) -> Tensor:
            return force(next(rest))

        with _Each(decide):
            yield
