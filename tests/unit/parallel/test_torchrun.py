"""The launcher for jobs of a cluster: signals reach the processes, and their exit code the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAUNCH = "from scalefold.parallel.torchrun import main; main()"
# A process that is asked to stop as a training is: it ends in its own time, with a code of its own.
PROCESS = """
import os, signal, sys, time
for number in (signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, lambda *_: sys.exit(75))
os.write(1, f"{os.getpid()}\\n".encode())  # at once: the other writes to the same pipe
time.sleep(300)
"""


@pytest.fixture
def launcher(tmp_path: Path, without_nohup: None) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "process.py").write_text(PROCESS)
    options = ["--standalone", "--nproc-per-node=2", str(tmp_path / "process.py")]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *options],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    yield process
    process.terminate()
    process.communicate()


def processes_of(launcher: subprocess.Popen[str]) -> list[int]:
    """Once both of them are ready."""
    assert launcher.stdout is not None
    return [int(launcher.stdout.readline()) for _ in range(2)]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_exit_code_handed_back(
    number: signal.Signals, launcher: subprocess.Popen[str]
) -> None:
    processes_of(launcher)
    launcher.send_signal(number)
    assert launcher.wait() == 75


def test_a_killed_process_ends_the_job_with_the_code_of_its_signal(
    launcher: subprocess.Popen[str],
) -> None:
    first, _ = processes_of(launcher)
    os.kill(first, signal.SIGKILL)
    assert launcher.wait() == 128 + signal.SIGKILL
