"""Ending in order when the launcher dies: nobody would end these processes any more."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Final

from scalefold.train.signals import StopRequest

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


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
                logger.warning("the launcher, process %d, is gone: stopping in order", parent)
                stop.reason = "the end of the launcher"
                stop.set()
                return

    threading.Thread(target=look, name="scalefold-parent", daemon=True).start()
    try:
        yield
    finally:
        left.set()
