"""The progress line of a training run: how far it is, and how well it goes."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean
from typing import Final

from rich.console import Console

from scalefold.progress import LiveLine
from scalefold.train.metrics import Record

_STEPS_OF_MEAN: Final = 25
_SECONDS_BETWEEN_LINES: Final = 5.0


class ProgressLine(LiveLine):
    """Shows step, loss, lDDT-Ca of the training crops, samples a second, and time left.

    The numbers are means of the last 25 steps, or as many as this process has made: single steps,
    as ``metrics.jsonl`` has them, are noisy.
    """

    def __init__(self, first_step: int, last_step: int, console: Console) -> None:
        super().__init__(
            "training step",
            last_step,
            console,
            done=first_step,
            seconds_between_lines=_SECONDS_BETWEEN_LINES,
        )
        self._last: deque[Record] = deque(maxlen=_STEPS_OF_MEAN)

    def update(self, record: Record) -> None:
        """Show a step's record (see `scalefold.train.metrics`)."""
        self._last.append(record)
        steps = len(self._last)
        self.show(
            record["step"],
            f"mean of {steps} step{'s' if steps > 1 else ''}: loss {self._mean('loss'):.3f}  "
            f"lDDT-Cα {self._mean('lddt_ca'):.3f}  "
            f"{self._mean('samples_per_second'):.3g} samples/s",
        )

    def _mean(self, name: str) -> float:
        """Mean over the steps whose number is finite: that of a skipped step may not be."""
        found = [record[name] for record in self._last if math.isfinite(record[name])]
        return fmean(found) if found else math.nan
