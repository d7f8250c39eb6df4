"""Which samples are served at which step.

The draws of a run are numbered. Draw ``d`` has its *place* at step ``d // global_batch_size``; of
each step, every rank has a contiguous part. In order, each draw is served at its place. Ready
first, the lowest draws *that are ready* are served, so that a slow one delays no step. It is served
when it is ready, but at most ``max_staleness`` steps after its place: a step waits for a sample
that is due. So every draw is served exactly once, and only the order differs.

Nothing here reads or waits: see `scalefold.loader.loader`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

_HISTORY: Final = 8
"""Steps whose draws are remembered, so that the position before them is known."""


@dataclass(frozen=True)
class Position:
    """Where a run is in its data.

    Attributes
    ----------
    step : int
        Steps served.
    late : tuple of int
        Draws of earlier steps that were not served yet, ascending.
    early : tuple of int
        Draws of this and later steps that were served already, ascending.
    """

    step: int
    late: tuple[int, ...] = ()
    early: tuple[int, ...] = ()

    @staticmethod
    def union(positions: Sequence[Position]) -> Position:
        """The position of all ranks together, from which any number of ranks can go on."""
        (step,) = {position.step for position in positions}
        return Position(
            step,
            tuple(sorted(chain.from_iterable(position.late for position in positions))),
            tuple(sorted(chain.from_iterable(position.early for position in positions))),
        )

    def state(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return {"step": self.step, "late": list(self.late), "early": list(self.early)}

    @staticmethod
    def of_state(state: dict[str, Any]) -> Position:
        """The inverse of `state`."""
        return Position(state["step"], tuple(state["late"]), tuple(state["early"]))


class ServingOrder:
    """The order in which one rank's draws are taken up and served.

    Parameters
    ----------
    position : Position
        Of all ranks together.
    local_size, global_size : int
        Samples a step, on this rank and on all.
    max_staleness : int
        Steps; 0: in order.
    """

    def __init__(
        self, position: Position, local_size: int, global_size: int, rank: int, max_staleness: int
    ) -> None:
        self.step = position.step
        self._local_size, self._global_size, self._rank = local_size, global_size, rank
        self._max_staleness = max_staleness
        self._late = deque(draw for draw in position.late if self._is_ours(draw))
        self._early = {draw for draw in position.early if self._is_ours(draw)}
        self._next = position.step * local_size  # of this rank's draws, counted
        self._served: deque[tuple[int, ...]] = deque(maxlen=_HISTORY)
        self.in_place = not (max_staleness or position.late or position.early)
        """Whether every draw is served at its place."""
        self.outstanding: list[int] = []
        """Draws that were taken up and are not served yet, ascending."""

    def take_up(self) -> int:
        """Return the next draw to prepare."""
        draw = self._upcoming()
        if self._late:
            self._late.popleft()
        else:
            self._next += 1
        self.outstanding.append(draw)
        return draw

    def upcoming_place(self) -> int:
        """Return the place of the next draw to prepare."""
        return self.place(self._upcoming())

    def choose(self, ready: Collection[int]) -> list[int] | None:
        """Draws to serve at this step, in ascending order; None while some are not ready.

        Parameters
        ----------
        ready : collection of int
            Those of the outstanding draws that are.
        """
        chosen = [
            draw
            for draw in self.outstanding
            if draw in ready or self.place(draw) + self._max_staleness <= self.step
        ][: self._local_size]
        complete = len(chosen) == self._local_size and all(draw in ready for draw in chosen)
        return chosen if complete else None

    def serve(self, chosen: Sequence[int]) -> list[int]:
        """Serve draws at this step, and go to the next; returns how many steps each is late."""
        lateness = [self.step - self.place(draw) for draw in chosen]
        for draw in chosen:
            self.outstanding.remove(draw)
        self._served.append(tuple(chosen))
        self.step += 1
        return lateness

    def place(self, draw: int) -> int:
        """Return the step that a draw belongs to."""
        return draw // self._global_size

    def position(self, step: int) -> Position:
        """Where this rank was before it served a step; of the last few steps."""
        undone = self.step - step
        if not 0 <= undone <= len(self._served):
            raise ValueError(f"position at step {step} is not known at step {self.step}")
        back = chain.from_iterable(list(self._served)[len(self._served) - undone :])
        first = step * self._local_size
        not_taken_up = {*map(self._draw, range(self._next, first))} - self._early
        unserved = {*self.outstanding, *self._late, *back} | not_taken_up
        served = {*map(self._draw, range(first, self._next))} - unserved | self._early
        return Position(
            step,
            tuple(sorted(draw for draw in unserved if self.place(draw) < step)),
            tuple(sorted(draw for draw in served if self.place(draw) >= step)),
        )

    def _upcoming(self) -> int:
        if self._late:
            return self._late[0]
        while (draw := self._draw(self._next)) in self._early:
            self._next += 1
        return draw

    def _draw(self, number: int) -> int:
        """Number of a draw in the run, from its number on this rank."""
        step, index = divmod(number, self._local_size)
        return step * self._global_size + self._rank * self._local_size + index

    def _is_ours(self, draw: int) -> bool:
        return draw % self._global_size // self._local_size == self._rank


def overtaken(outstanding: Sequence[int], ready: Iterable[int]) -> int:
    """Number of draws that are not ready though one that was taken up later is."""
    known = set(ready)
    last = max((i for i, draw in enumerate(outstanding) if draw in known), default=0)
    return sum(draw not in known for draw in outstanding[:last])
