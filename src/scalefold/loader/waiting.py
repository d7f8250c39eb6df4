"""Waiting for samples: not in silence, and not against a request to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from scalefold.errors import first_few

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""Between looks at the clock and at the request to stop."""
WARNING_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
"""How long samples may still come after a request to stop, so that the step can be made."""


class StoppedWaitingError(Exception):
    """A request to stop came, and the samples of the step did not."""


class SampleWait:
    """Watches one wait for the samples of a step.

    Parameters
    ----------
    step : int
        Counted from 1.
    stop : Event
        Asks for the end of the training.
    """

    def __init__(self, step: int, stop: threading.Event) -> None:
        self._step, self._stop = step, stop
        self._started = time.monotonic()
        self._stop_seen: float | None = None
        self._warn_after = WARNING_SECONDS

    def look(self, missing: Sequence[str]) -> None:
        """Warn now and then of what is missing.

        Raises
        ------
        StoppedWaitingError
            The end has been asked for, and nothing came since.
        """
        now = time.monotonic()
        waited = now - self._started
        if waited >= self._warn_after:
            self._warn_after = waited + WARNING_SECONDS
            logger.warning(
                "step %d has waited %.0f s for samples: %s. The workers may hang, or the file "
                "system of the shards may not answer",
                self._step, waited, first_few(missing),
            )  # fmt: skip
        if self._stop.is_set():
            self._stop_seen = self._stop_seen or now
            if now - self._stop_seen >= STOP_SECONDS:
                raise StoppedWaitingError(f"step {self._step}")
