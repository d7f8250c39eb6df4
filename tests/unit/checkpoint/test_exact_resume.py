"""A run that is killed and resumed equals one that was not, to the last bit."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.trajectory import assert_identical, records

from scalefold.checkpoint.read import checkpoints, load_training, load_weights
from scalefold.config import config_to_yaml, make_config
from scalefold.config.load import merge
from scalefold.train.start import train

# A training process of its own; the third argument says where it kills itself, like a power cut.
RUN = """
import os, signal, sys, threading
from pathlib import Path
import torch
from scalefold.config import load_config
from scalefold.checkpoint import write as checkpoint
from scalefold.train import metrics
from scalefold.train.start import train

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

config, shards, out, where = sys.argv[1:]
torch.set_num_threads(1)
write_record, write_file = metrics.MetricsLog.write, checkpoint._write

def record(self, record):
    write_record(self, record)
    if where == f"step {record['step']}":
        kill()

def file(path, content):
    facts = write_file(path, content)
    if where == f"{path.parent.name.split('.')[0]} {path.name}":
        kill()
    return facts

metrics.MetricsLog.write, checkpoint._write = record, file
if __name__ == "__main__":
    train(load_config([Path(config)]), Path(shards), Path(out), resume=True,
          device=torch.device("cpu"), stop=threading.Event())
"""


def _run(tmp_path: Path, shards: Path, tree: dict[str, Any], where: str) -> int:
    config, script = tmp_path / "config.yaml", tmp_path / "run.py"
    config.write_text(config_to_yaml(make_config(tree)))
    script.write_text(RUN)
    command = [sys.executable, str(script), str(config), str(shards), str(tmp_path / "out"), where]
    return subprocess.run(command, check=False).returncode


@pytest.fixture(scope="module")
def uninterrupted(
    micro_tree: dict[str, Any], shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(
            make_config(micro_tree), shards, out,
            resume=False, device=torch.device("cpu"), stop=threading.Event(),
        )  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    return out


@pytest.mark.parametrize(
    ("kills", "workers"),
    [
        (["step 3"], 0),  # between two checkpoints
        (["step-00000004 averaged.pt"], 0),  # while a checkpoint is being written
        (["step 1", "step-00000002 weights.pt", "step 5"], 0),
        (["step 3"], 1),  # with samples read ahead by a worker process
    ],
    ids=["between checkpoints", "in a checkpoint", "three times", "with a worker"],
)
def test_killed_and_resumed_equals_uninterrupted(
    kills: list[str], workers: int, uninterrupted: Path, micro_tree: dict[str, Any], shards: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    tree = merge(micro_tree, {"training": {"loader_workers": workers}})
    for where in kills:
        assert _run(tmp_path, shards, tree, where) == -signal.SIGKILL
    assert _run(tmp_path, shards, tree, "nowhere") == 0

    out = tmp_path / "out"
    assert records(out) == records(uninterrupted)
    ours, theirs = checkpoints(out), checkpoints(uninterrupted)
    assert [p.name for p in ours] == [p.name for p in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for which in ("weights", "averaged"):
            assert_identical(load_weights(one, which), load_weights(other, which))
        assert_identical(load_training(one), load_training(other))
    assert not list(out.glob("*.tmp.*"))


def test_the_runs_that_are_compared_do_train(uninterrupted: Path) -> None:
    first, *_, last = checkpoints(uninterrupted)
    before, after = load_weights(first, "weights"), load_weights(last, "weights")
    changed = sum(not torch.equal(before[name], after[name]) for name in before)
    assert changed > 0.5 * len(before)
    assert load_training(last)["optimiser"]["updates"] == 6
    assert {r["recycling"] for r in records(uninterrupted)} == {0, 1}
