"""The library's log lines on standard error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rich.console import Console
from rich.logging import RichHandler

if TYPE_CHECKING:
    from scalefold.launcher import Place


def log_to_stderr(place: Place | None = None) -> Console:
    """Show what the package logs: beside a progress bar on a terminal, plain lines in a file.

    Parameters
    ----------
    place : Place, optional
        Of this process among several: all but the first show warnings only, with their rank.

    Returns
    -------
    Console
        For progress bars: log lines appear above them.
    """
    rank = place.rank if place is not None else 0
    console = Console(stderr=True, quiet=rank > 0)
    who = f"rank {rank}: " if rank else ""
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s %(levelname)s {who}%(message)s", "%H:%M:%S")
        )
    logger = logging.getLogger("scalefold")
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING if rank else logging.INFO)
    return console
