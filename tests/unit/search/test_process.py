"""Limits of time and memory, and process groups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from scalefold.errors import InputError
from scalefold.search.process import UNLIMITED, Limits, ToolError, run, run_reading

# Like Debian's hhblits: a script that starts the real program and waits.
_STARTS_ANOTHER = 'sleep 600 & echo $! > "$0"; wait'


def _is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _await_end(number: int) -> None:
    while _is_running(number):
        time.sleep(0.01)


def test_kills_the_whole_group_when_time_is_over(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(ToolError, match="longer than"):
        run(["sh", "-c", _STARTS_ANOTHER, note], Limits(minutes=1 / 60))
    _await_end(int(note.read_text()))


def test_kills_the_whole_group_when_it_is_interrupted(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def interrupt(stream: object) -> None:
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_reading(["sh", "-c", _STARTS_ANOTHER, note], Limits(), interrupt)
    _await_end(int(note.read_text()))


def test_limits_memory_that_is_written_not_what_is_mapped(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="MemoryError"):
        run([sys.executable, "-c", "bytearray(10**9)"], Limits(memory_gigabytes=0.5))
    large = tmp_path / "database"
    with large.open("wb") as file:
        os.truncate(file.fileno(), 10**9)
    mapped = (
        "import mmap, sys; file = open(sys.argv[1]); "
        "mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)"
    )
    run([sys.executable, "-c", mapped, large], Limits(memory_gigabytes=0.5))


def test_without_limits_a_program_may_run_and_take_memory_as_it_likes() -> None:
    run([sys.executable, "-c", "bytearray(10**8)"], UNLIMITED)
    with pytest.raises(ToolError, match="SIGKILL"):
        run(["sh", "-c", "kill -KILL $$"], UNLIMITED)


def test_returns_the_output_and_says_why_a_program_failed() -> None:
    assert run_reading(["echo", "found"], Limits(), lambda stream: stream.read()) == b"found\n"
    with pytest.raises(ToolError, match=r"exit code 3\): first / last"):
        run(["sh", "-c", "echo first >&2; echo last >&2; exit 3"], Limits())
    with pytest.raises(ToolError, match="SIGSEGV"):
        run(["sh", "-c", "kill -SEGV $$"], Limits())


def test_a_program_that_was_ended_says_so_and_not_that_its_output_is_cut_off() -> None:
    def read(stream: IO[bytes]) -> None:
        stream.read()
        raise InputError("cut off")

    with pytest.raises(ToolError, match="longer than"):
        run_reading(["sleep", "600"], Limits(minutes=1 / 600), read)
    with pytest.raises(ToolError, match="exit code 3"):
        run_reading(["sh", "-c", "exit 3"], Limits(), read)
    with pytest.raises(ToolError, match="cut off"):
        run_reading(["true"], Limits(), read)


_SLOW_START = """
import subprocess, time
class Slow(subprocess.Popen):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        time.sleep(1)  # the program runs, and nobody has its number
subprocess.Popen = Slow
"""


@pytest.mark.parametrize("before", ["", _SLOW_START])
def test_a_search_that_is_terminated_ends_its_programs(tmp_path: Path, before: str) -> None:
    note = tmp_path / "pid"
    program = (
        f"{before}\nimport signal, sys; from scalefold.cli.search import _end; "
        "from scalefold.search.process import Limits, run; "
        "signal.signal(signal.SIGTERM, _end); "
        f"run(['sh', '-c', {_STARTS_ANOTHER!r}, sys.argv[1]], Limits())"
    )
    process = subprocess.Popen([sys.executable, "-c", program, note])
    while not note.exists() or not note.read_text():
        time.sleep(0.01)
    process.terminate()
    assert process.wait() == 143
    _await_end(int(note.read_text()))
