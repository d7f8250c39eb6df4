"""What a user sees of long work: one live line on a terminal, plain lines in a log file."""

from __future__ import annotations

import logging
import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

logger = logging.getLogger(__name__)

_RECENT_SHARE: Final = 1 / 4
_MOST_RECENT: Final = 1000
"""The remaining time is estimated from the last quarter of what is done, and from no more than this
many: first steps compile, and a machine gets busy. It is enough for pauses to count, such as those
of checkpoints.
"""


class LiveLine:
    """Shows a count, a text about the last item, and the time left.

    Parameters
    ----------
    title : str
        Stands before the count.
    total : int
        The count in the end.
    console : Console, optional
        Where to, default standard error; a live line if it is a terminal, otherwise lines in the
        log.
    done : int
        The count before.
    seconds_between_lines : float
        In the log; the first and the last line are always written.
    """

    def __init__(
        self,
        title: str,
        total: int,
        console: Console | None = None,
        done: int = 0,
        seconds_between_lines: float = 0.0,
    ) -> None:
        self._title, self._total, self._first = title, total, done
        self._pause = seconds_between_lines
        self._recent = deque([(time.monotonic(), done)])
        self._last_line = -float("inf")
        self._live: Progress | None = None
        console = console or Console(stderr=True)
        if console.is_terminal:
            self._live = Progress(
                TextColumn("{task.fields[title]}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.description}", markup=False),
                console=console,
            )
            self._task = self._live.add_task("", total=total, completed=done, title=title)

    def __enter__(self) -> Self:
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

    def show(self, done: int, text: str) -> None:
        """Set the count, which grows; ``text`` is about the last item."""
        now = time.monotonic()
        text = f"{text}  {format_duration(self._seconds_left(now, done))} left"
        if self._live is not None:
            self._live.update(self._task, completed=done, description=text)
        elif done in (self._first + 1, self._total) or now - self._last_line >= self._pause:
            self._last_line = now
            logger.info("%s %d/%d  %s", self._title, done, self._total, text)

    def _seconds_left(self, now: float, done: int) -> float:
        """Time for the rest, at the pace of what was done last."""
        window = min(_RECENT_SHARE * (done - self._first), _MOST_RECENT)
        while len(self._recent) > 1 and self._recent[1][1] <= done - window:
            self._recent.popleft()
        since, done_then = self._recent[0]
        self._recent.append((now, done))
        return (now - since) / (done - done_then) * (self._total - done)


def format_duration(seconds: float) -> str:
    """``h:mm:ss``, or ``m:ss`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration_in_words(seconds: float) -> str:
    """``12.3 s``, ``4 min 05 s`` or ``1 h 02 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
