"""Ending a run early, in order: finish the step, write a checkpoint, leave.

SIGTERM and SIGINT are what schedulers and terminals send; SIGUSR1 is what ``sbatch --signal`` is
usually told to send some minutes before the time limit.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

EXIT_STOPPED: Final = 75
"""Exit code of a run that was stopped before its last step and wrote a checkpoint (EX_TEMPFAIL):
start it again with ``--resume``."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest(threading.Event):
    """Set when the run is to end; remembers why."""

    reason: str = "a signal to another process"


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn signals into a request; a second SIGINT (an impatient user) interrupts at once."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        if request.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.reason = signal.Signals(number).name
        request.set()

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])
