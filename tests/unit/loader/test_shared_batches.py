"""Ranks that share their samples get the same from one loader, or the same error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalefold.errors import ElsewhereError, InputError
from scalefold.loader.loader import Batch
from scalefold.loader.shared_batches import SharedLoader
from scalefold.loader.waiting import StoppedWaitingError
from scalefold.parallel import Ranks

CPU = torch.device("cpu")


class Wire(Ranks):
    """What the first rank says is what the second one hears."""

    size = 2

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.sent: list[torch.Tensor] = []

    def at(self, rank: int) -> Wire:
        self.rank = rank
        return self

    def broadcast_on_host(self, value: Any) -> Any:
        if self.rank == 0:
            self.told.append(value)
            return value
        return self.told.pop(0)

    def broadcast(self, x: torch.Tensor) -> None:
        if self.rank == 0:
            self.sent.append(x.clone())
        else:
            x.copy_(self.sent.pop(0))


def _batch() -> Batch:
    sample = {"a": torch.randn(1, 3), "key": torch.tensor([2**40])}
    passes = [{**sample, "b": torch.randn(1, 2, 5)} for _ in range(2)]
    return Batch(4, [8], ["1abc_A"], [0], 1, [passes], 0.5)


class Own:
    """A loader that gives, or raises, one thing."""

    def __init__(self, outcome: Batch | Exception) -> None:
        self.outcome = outcome

    def __next__(self) -> Batch:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def _loaders(outcome: Batch | Exception) -> tuple[Wire, SharedLoader, SharedLoader]:
    wire = Wire()
    own: Any = Own(outcome)
    return wire, SharedLoader(own, wire, CPU), SharedLoader(None, wire, CPU)


def test_both_ranks_have_the_same_bits() -> None:
    wire, first, second = _loaders(_batch())
    wire.at(0)
    mine = next(first)
    wire.at(1)
    theirs = next(second)
    assert (theirs.step, theirs.draws, theirs.chain_keys) == (4, [8], ["1abc_A"])
    assert (theirs.recycling, theirs.wait_seconds) == (1, 0.5)
    for ours, others in zip(mine.samples[0], theirs.samples[0], strict=True):
        assert ours.keys() == others.keys()
        assert all(torch.equal(tensor, others[name]) for name, tensor in ours.items())
    # What passes have in common was sent once.
    assert theirs.samples[0][0]["a"] is theirs.samples[0][1]["a"]


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        (InputError("row 7 is damaged"), ElsewhereError),
        (StoppedWaitingError("step 4"), StoppedWaitingError),
    ],
)
def test_a_sample_that_does_not_come_is_missing_on_both(
    error: Exception, elsewhere: type[Exception]
) -> None:
    wire, first, second = _loaders(error)
    wire.at(0)
    with pytest.raises(type(error), match=str(error)):
        next(first)
    wire.at(1)
    with pytest.raises(elsewhere, match=str(error)):
        next(second)
