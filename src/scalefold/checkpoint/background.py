"""Work beside the training: one job at a time, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Does what takes long and no step waits for.

    What a job raises is raised again by the next call, whichever it is, once.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._job: Future[None] | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, once the one before has ended."""
        self.finish()
        self._job = self._thread.submit(job)

    def check(self) -> None:
        """Raise what the last job has raised, without waiting for one that is under way."""
        if self._job is not None and self._job.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the job that is under way."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Wait for whatever is under way, and let no other begin."""
        self._thread.shutdown()
        self.finish()
