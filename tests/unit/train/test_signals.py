"""A terminal that goes while a training runs on it, as a user's does: real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.train.torchrun import Trainings

from scalefold.checkpoint.read import checkpoints
from scalefold.config.load import merge

STEPS = 100_000
"""More than are made before the terminal goes."""


@pytest.fixture
def trainings(micro_tree: dict[str, Any], shards: Path, tmp_path: Path) -> Trainings:
    training = {"steps": STEPS, "checkpoint_every": STEPS, "loader_workers": 1}
    return Trainings(tmp_path, shards, merge(micro_tree, {"training": training}))


def test_a_closed_terminal_stops_in_order(
    trainings: Trainings, tmp_path: Path, without_nohup: None
) -> None:
    """The process and its loader's worker get SIGHUP, and what they still print goes nowhere."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *trainings.command(tmp_path / "out", 1, [])],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
    )
    os.close(theirs)
    try:
        shown = b""
        with contextlib.suppress(OSError):  # of a terminal that nobody has open any more
            while b"loss" not in shown:
                shown += os.read(ours, 4096)
        os.close(ours)
        assert process.wait() == 75, shown.decode()
    finally:
        process.kill()
    assert checkpoints(tmp_path / "out")[-1].name != "step-00000000"


def test_under_nohup_a_training_goes_on(trainings: Trainings, tmp_path: Path) -> None:
    trainings.tree = merge(trainings.tree, {"training": {"steps": 3, "loader_workers": 0}})
    command = trainings.command(tmp_path / "out", 1, [{"step": 2, "what": "SIGHUP"}])
    done = subprocess.run(["nohup", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert checkpoints(tmp_path / "out")[-1].name == "step-00000003"


def test_hanging_workers_keep_no_training_from_stopping(
    trainings: Trainings, tmp_path: Path
) -> None:
    process = trainings.start(tmp_path / "out")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "loss" in line or "backend" in line:
                break
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGSTOP)
        process.terminate()
        assert process.wait() == 75, process.stdout.read()
    finally:
        process.kill()
    assert checkpoints(tmp_path / "out")[-1].name != "step-00000000"
