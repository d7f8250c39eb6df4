"""What a user sees of a run: one live line on a terminal, plain lines in a log file."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from scalefold.train.metrics import Record

logger = logging.getLogger(__name__)

_SMOOTHING: Final = 0.1
_SECONDS_BETWEEN_LINES: Final = 5.0


class ProgressLine:
    """Shows step, loss, lDDT-Ca of the training crops, samples a second, and time left.

    Loss and lDDT are running means (weight 0.1 for each new step): single steps are noisy.

    Parameters
    ----------
    first_step, last_step : int
        Steps done before, steps in the end.
    console : Console
        Where to; a live line if it is a terminal, otherwise lines in the log.
    """

    def __init__(self, first_step: int, last_step: int, console: Console) -> None:
        self._first, self._last = first_step, last_step
        self._started = time.monotonic()
        self._last_line = -float("inf")
        self._means: dict[str, float] = {}
        self._live: Progress | None = None
        if console.is_terminal:
            self._live = Progress(
                TextColumn("training"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                console=console,
            )
            self._task = self._live.add_task("", total=last_step, completed=first_step)

    def __enter__(self) -> ProgressLine:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, record: Record) -> None:
        """Show a step's record (see `scalefold.train.metrics`)."""
        step: int = record["step"]
        for name in ("loss", "lddt_ca", "samples_per_second"):
            value = record[name]
            if value == value:  # not NaN
                mean = self._means.get(name, value)
                self._means[name] = mean + _SMOOTHING * (value - mean)
        text = self._text(step)
        if self._live is not None:
            self._live.update(self._task, completed=step, description=text)
            return
        now = time.monotonic()
        if step in (self._first + 1, self._last) or now - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = now
            logger.info("step %d/%d  %s", step, self._last, text)

    def _text(self, step: int) -> str:
        elapsed = time.monotonic() - self._started
        left = elapsed / (step - self._first) * (self._last - step)
        shown = {name: self._means.get(name, float("nan")) for name in ("loss", "lddt_ca")}
        speed = self._means.get("samples_per_second", float("nan"))
        return (
            f"loss {shown['loss']:.3f}  lDDT-Cα {shown['lddt_ca']:.3f}  "
            f"{speed:.3g} samples/s  {format_duration(left)} left"
        )


def format_duration(seconds: float) -> str:
    """``h:mm:ss``, or ``m:ss`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
