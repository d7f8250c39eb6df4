"""The library's log lines on standard error."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler


def log_to_stderr() -> Console:
    """Show what the package logs: beside a progress bar on a terminal, plain lines in a file.

    Returns
    -------
    Console
        For progress bars: log lines appear above them.
    """
    console = Console(stderr=True)
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("scalefold")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    return console
