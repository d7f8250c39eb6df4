"""Trainings in processes of their own, with faults put in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scalefold.config import config_to_yaml, make_config

# A training whose loader does something bad on a rank before it delivers a step's samples. Buckets
# are small, so that there are some.
SCRIPT = """
import json, os, signal, sys
import torch
from scalefold.cli import app
from scalefold.errors import InputError
from scalefold.loader.loader import TrainingLoader
from scalefold.parallel.launch import find_place
from scalefold.train import clipping
from scalefold.train.target import TargetReached

faults, out = json.loads(sys.argv.pop(1)), sys.argv[sys.argv.index("--out") + 1]
clipping.BUCKET_ELEMENTS = 5000
place = find_place()
rank = place.rank if place else 0
deliver = TrainingLoader.__next__

def spoil(batch):
    if {"step": batch.step + 1, "rank": rank} not in [
        {"step": fault["step"], "rank": fault.get("rank", rank)} for fault in faults
    ]:
        return batch
    (what,) = [f["what"] for f in faults if f["step"] == batch.step + 1]
    if what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
    elif what == "damaged":
        raise InputError("msa-00000.arrow: row 7 is damaged")
    elif what == "bug":
        raise KeyError("a bug")
    elif what == "nan":
        frames = batch.passes[-1]["backbone_rigid_tensor"]
        batch.passes[-1]["backbone_rigid_tensor"] = torch.full_like(frames, torch.nan)
    else:
        TargetReached(**what_is_reached(what)).write(__import__("pathlib").Path(out))
    return batch

def what_is_reached(data):
    return {"step": 0, "split": "train", "lddt_ca": 0.9, "data_manifest_sha256": data}

TrainingLoader.__next__ = lambda loader: spoil(deliver(loader))
if __name__ == "__main__":
    app(prog_name="scalefold")
"""


class Trainings:
    """Starts trainings of one configuration with different numbers of processes."""

    def __init__(self, folder: Path, shards: Path, tree: dict[str, Any]) -> None:
        self._folder, self._shards = folder, shards
        self.tree = tree
        (folder / "run.py").write_text(SCRIPT)

    def command(self, out: Path, size: int, faults: list[dict[str, Any]]) -> list[str]:
        """Of a training with ``size`` processes; one is started without a launcher."""
        config = self._folder / "config.yaml"
        config.write_text(config_to_yaml(make_config(self.tree)))
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        return [
            sys.executable, *(launcher if size > 1 else []), str(self._folder / "run.py"),
            json.dumps(faults), "train", "-c", str(config), "--shards", str(self._shards),
            "--out", str(out), "--resume", "--device", "cpu",
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
            output, _ = process.communicate(timeout=240)
        finally:
            process.kill()
        return process.returncode, output
