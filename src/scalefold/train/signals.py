"""Ending a run early: finish the step, write a checkpoint, exit.

SIGTERM and SIGINT are what schedulers and terminals send, SIGHUP what a terminal that is closed or
an ssh connection that is lost; SIGUSR1 is what ``sbatch --signal`` is usually told to send some
minutes before the time limit. A launcher that dies leaves nobody to end its processes any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

logger = logging.getLogger(__name__)

EXIT_STOPPED: Final = 75
"""Exit code of a run that was stopped before its last step and wrote a checkpoint (EX_TEMPFAIL):
start it again with ``--resume``."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_OUTPUTS: Final = (1, 2)
"""File descriptors of standard output and standard error."""
_LOOK_SECONDS: Final = 1.0


class StopRequest(threading.Event):
    """Set when the run is to end; remembers why."""

    reason: str = "the request of another process"


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn signals into a request; a second SIGINT (an impatient user) interrupts at once.

    SIGHUP stays ignored where it is, as under nohup.
    """
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        del before[signal.SIGHUP]

    def handle(number: int, frame: FrameType | None) -> None:
        if request.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            _let_go_of_lost_terminal()
        request.reason = signal.Signals(number).name
        request.set()

    for number in before:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_without_parent(stop: StopRequest) -> Iterator[None]:
    """Ask for the end once the process that started this one is gone.

    A launcher that dies before this is called has taken the meeting point of its processes along,
    so these fail to find each other.
    """
    parent, left = os.getppid(), threading.Event()

    def look() -> None:
        while not left.wait(_LOOK_SECONDS):
            if os.getppid() != parent:
                logger.warning("the launcher, process %d, exited: shutting down cleanly", parent)
                stop.reason = "the end of the launcher"
                stop.set()
                return

    threading.Thread(target=look, name="scalefold-parent", daemon=True).start()
    try:
        yield
    finally:
        left.set()


def _let_go_of_lost_terminal() -> None:
    """Stop writing to a terminal that is gone, since a write is an error (EIO)."""
    for output in _OUTPUTS:
        try:
            os.write(output, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)
