"""Work in a thread beside the training, one job at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Runs long jobs that no step waits for.

    An exception of a job is raised again once, by the next call of any method.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._job: Future[None] | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, once the one before has ended."""
        self.finish()
        self._job = self._thread.submit(job)

    def check(self) -> None:
        """Raise the exception of the last job, without waiting for a running one."""
        if self._job is not None and self._job.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the running job."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Wait for the running job, and accept no other."""
        self._thread.shutdown()
        self.finish()
