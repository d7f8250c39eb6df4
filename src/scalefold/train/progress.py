"""What a user sees of a training: how far it is, and how well it goes."""

from __future__ import annotations

from typing import Final

from rich.console import Console

from scalefold.progress import LiveLine
from scalefold.train.metrics import Record

_SMOOTHING: Final = 0.1
_SECONDS_BETWEEN_LINES: Final = 5.0


class ProgressLine(LiveLine):
    """Shows step, loss, lDDT-Ca of the training crops, samples a second, and time left.

    The numbers are running means (weight 0.1 for each new step): single steps are noisy.

    Parameters
    ----------
    first_step, last_step : int
        Steps done before, steps in the end.
    console : Console
        Where to; a live line if it is a terminal, otherwise lines in the log.
    """

    def __init__(self, first_step: int, last_step: int, console: Console) -> None:
        super().__init__(
            "training step",
            last_step,
            console,
            done=first_step,
            seconds_between_lines=_SECONDS_BETWEEN_LINES,
        )
        self._means = dict.fromkeys(("loss", "lddt_ca", "samples_per_second"), float("nan"))

    def update(self, record: Record) -> None:
        """Show a step's record (see `scalefold.train.metrics`)."""
        for name, mean in self._means.items():
            value = record[name]
            if value == value:  # not NaN
                self._means[name] = value if mean != mean else mean + _SMOOTHING * (value - mean)
        loss, lddt, speed = self._means.values()
        self.show(record["step"], f"loss {loss:.3f}  lDDT-Cα {lddt:.3f}  {speed:.3g} samples/s")
