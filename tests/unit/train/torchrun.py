"""Trainings in processes of their own, with faults put in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scalefold.config import config_to_yaml, make_config
from scalefold.config.load import merge

# A training whose loader does something bad on a rank before it delivers a step's samples, perhaps
# not until a checkpoint, which is written beside the steps, is complete. Buckets are small, so that
# there are some.
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from scalefold.cli import app
from scalefold.errors import InputError
from scalefold.loader.loader import TrainingLoader
from scalefold.launcher import find_place
from scalefold.optim import clipping
from scalefold.checkpoint.read import checkpoint_path, ready_mark
from scalefold.checkpoint.early_stopping import TargetReached

def spoil(batch):
    for fault in faults:
        if fault["step"] == batch.step + 1 and fault.get("rank", rank) == rank:
            if "after" in fault:
                wait_for(ready_mark(checkpoint_path(out, fault["after"])))
            happen(fault["what"], batch.samples)
    return batch

def wait_for(path):
    while not path.exists():
        time.sleep(0.01)

def happen(what, samples):
    if what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
    elif what == "damaged":
        raise InputError("msa-00000.arrow: row 7 is damaged")
    elif what == "bug":
        raise KeyError("a bug")
    elif what == "nan":
        for *_, features in samples:
            frames = features["backbone_rigid_tensor"]
            features["backbone_rigid_tensor"] = torch.full_like(frames, torch.nan)
    else:  # the hash of the data: their target is reached
        TargetReached(0, "train", 0.9, what).write(out)

if __name__ == "__main__":
    faults = json.loads(sys.argv.pop(1))
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    place = find_place()
    rank = place.rank if place else 0
    clipping.BUCKET_ELEMENTS = 5000
    deliver = TrainingLoader.__next__
    TrainingLoader.__next__ = lambda loader: spoil(deliver(loader))
    app(prog_name="scalefold")
"""


class Trainings:
    """Starts trainings of one configuration with different numbers of processes."""

    def __init__(self, folder: Path, shards: Path, tree: dict[str, Any]) -> None:
        self._folder, self._shards = folder, shards
        # So long that only the launcher's help can end a training that has lost a rank.
        patient = {"start_timeout_seconds": 86_400, "exchange_timeout_seconds": 86_400}
        self.tree, self.device = merge(tree, {"training": patient}), "cpu"
        (folder / "run.py").write_text(SCRIPT)

    def command(self, out: Path, size: int, faults: list[dict[str, Any]]) -> list[str]:
        """Of a training with ``size`` processes; one is started without a launcher."""
        config = self._folder / "config.yaml"
        config.write_text(config_to_yaml(make_config(self.tree)))
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        return [
            sys.executable, *(launcher if size > 1 else []), str(self._folder / "run.py"),
            json.dumps(faults), "train", "-c", str(config), "--shards", str(self._shards),
            "--out", str(out), "--resume", "--device", self.device,
        ]  # fmt: skip

    def start(self, out: Path, size: int = 1, *faults: dict[str, Any]) -> subprocess.Popen[str]:
        """Start one."""
        return subprocess.Popen(
            self.command(out, size, list(faults)),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, out: Path, size: int = 1, *faults: dict[str, Any]) -> tuple[int, str]:
        """Run one to its end: exit code and what all its processes printed."""
        process = self.start(out, size, *faults)
        try:
            output, _ = process.communicate()
        finally:
            process.kill()
        return process.returncode, output
