"""Run a program with limits of time and memory, in a process group of its own.

Programs start others: Debian's ``hhblits`` is a script that starts the real program. To kill the
script alone would leave that running. So the whole group is killed, also after an interruption.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeVar

from scalefold.errors import InputError

Result = TypeVar("Result")
_LAST_LINES: Final = 3
_MOST_SAID: Final = 400
# Only memory that a program writes counts: mapped databases may be larger than any memory.
_LIMITED: Final = 'ulimit -c 0; ulimit -d "$1"; shift; exec "$@"'


class ToolError(InputError):
    """A program failed on one input: it ran too long, crashed, or wrote no valid result."""


@dataclass(frozen=True)
class Limits:
    """What one run of a program may take.

    Parameters
    ----------
    minutes
        Time on the clock; infinity: no limit.
    memory_gigabytes
        Memory of each of its processes; mapped database files do not count. Infinity: no limit.
    """

    minutes: float = 60.0
    memory_gigabytes: float = 16.0
    threads: int = 1

    @property
    def kilobytes(self) -> str:
        """The memory as ``ulimit`` takes it."""
        if math.isinf(self.memory_gigabytes):
            return "unlimited"
        return str(max(1, round(self.memory_gigabytes * 1e9 / 1024)))


UNLIMITED: Final = Limits(math.inf, math.inf)


def run(command: Sequence[str | Path], limits: Limits, cwd: Path | None = None) -> None:
    """Run a program to its end; its output is used for error messages only.

    Raises
    ------
    ToolError
        It fails, or takes more than its limits.
    """
    run_reading(command, limits, lambda stream: stream.read(), cwd)


@contextlib.contextmanager
def checked_output(program: str) -> Iterator[None]:
    """Turn an InputError about a program's output into a ToolError that names the program."""
    try:
        yield
    except InputError as error:
        raise ToolError(f"{program} wrote a result that cannot be used: {error}") from error


def run_reading(
    command: Sequence[str | Path],
    limits: Limits,
    read: Callable[[IO[bytes]], Result],
    cwd: Path | None = None,
) -> Result:
    """Run a program; ``read`` reads its standard output meanwhile, and its result is returned.

    Raises
    ------
    ToolError
        It fails, or takes more than its limits; or ``read`` raises an `InputError`.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as said:
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            _kill_group(process)

        timer = threading.Timer(min(limits.minutes * 60.0, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        bad_output: InputError | None = None
        # A signal that ends this process waits until the program can be ended with it. The program
        # inherits the mask, and SIGKILL ends it all the same.
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _LIMITED, "sh", limits.kilobytes, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
            raise
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
            timer.start()
            assert process.stdout is not None
            with process.stdout as stream:
                try:
                    result = read(stream)
                except InputError as error:  # the program may have been killed
                    bad_output = error
                    stream.read()
            code = process.wait()
        finally:
            timer.cancel()
            _kill_group(process)
            process.wait()
        if is_late.is_set():
            raise ToolError(
                f"{_name(words)} took longer than {limits.minutes:g} minutes and was ended: allow "
                "more, or leave this sequence out"
            )
        if code != 0:
            raise ToolError(f"{_name(words)} failed ({_cause(code, limits)}){_tail(said)}")
        if bad_output is not None:
            raise ToolError(str(bad_output)) from bad_output
        return result


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of the group; the program itself may have ended already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _name(words: Sequence[str]) -> str:
    return Path(words[0]).name


def _cause(code: int, limits: Limits) -> str:
    number = -code if code < 0 else code - 128  # a shell says 128 + signal
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS):
        gigabytes = limits.memory_gigabytes
        limit = "" if math.isinf(gigabytes) else f": it may have {gigabytes:g} GB"
        return f"{signal.Signals(number).name}, perhaps for lack of memory{limit}"
    return f"exit code {code}"


def _tail(said: IO[bytes]) -> str:
    """Return the last lines of a program's messages, as the end of a sentence."""
    said.seek(0, os.SEEK_END)
    said.seek(max(0, said.tell() - 10_000))
    lines = [" ".join(line.split()) for line in said.read().decode("utf-8", "replace").split("\n")]
    last = " / ".join([line for line in lines if line][-_LAST_LINES:])
    return f": {last[-_MOST_SAID:]}" if last else ""
