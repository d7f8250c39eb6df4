"""What a user sees of an evaluation: a bar on a terminal, one line a chain in a log file."""

from __future__ import annotations

import logging
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)


class ChainProgress:
    """Counts chains and shows what became of the last one.

    Parameters
    ----------
    title : str
    total : int
        Number of chains.
    console : Console
        Where to; a live bar if it is a terminal, otherwise lines in the log.
    """

    def __init__(self, title: str, total: int, console: Console) -> None:
        self._title, self._total, self._done = title, total, 0
        self._live: Progress | None = None
        if console.is_terminal:
            self._live = Progress(
                TextColumn("{task.fields[title]}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
                console=console,
            )
            self._task = self._live.add_task("", total=total, title=title)

    def __enter__(self) -> ChainProgress:
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

    def advance(self, text: str) -> None:
        """One more chain is done; ``text`` says which, and how it went."""
        self._done += 1
        if self._live is not None:
            self._live.update(self._task, advance=1, description=text)
        else:
            logger.info("%s: %d/%d  %s", self._title, self._done, self._total, text)
