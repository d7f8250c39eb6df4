"""Two processes that share each chain predict and evaluate as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "data/a3f069b"
SHARDS = DATA / "run/shards"
CHECKPOINT = DATA / "run/weights/6d91b8e2c64a/step-00000004"
CONFIG = DATA / "expected/config.yaml"
TOLERANCE_ANGSTROM = 1e-3
"""Files have three digits; float32 adds 1e-5 of the largest coordinate."""


def _scalefold(processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    started = [sys.executable, "-m", "scalefold"]
    if processes > 1:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        started = [sys.executable, "-m", *launcher, "-m", "scalefold"]
    return subprocess.run(
        [*started, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def _atoms(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for file in sorted(folder.rglob("*.cif")):
        model = gemmi.read_structure(str(file))[0]
        found[str(file.relative_to(folder))] = np.array([a.atom.pos.tolist() for a in model.all()])
    return found


def test_structures_are_the_same(tmp_path: Path) -> None:
    for processes in (1, 2):
        done = _scalefold(
            processes, "predict", "--shards", SHARDS, "-w", CHECKPOINT, "--device", "cpu",
            "--chain", "1a8o_A", "--out", tmp_path / str(processes), "--early-stop", "0.001",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    alone, together = (_atoms(tmp_path / str(n)) for n in (1, 2))
    assert alone.keys() == together.keys()
    assert alone
    for name, atoms in alone.items():
        assert np.abs(atoms - together[name]).max() <= 2 * TOLERANCE_ANGSTROM


def test_scores_are_the_same(tmp_path: Path) -> None:
    scores: list[Any] = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.json"
        done = _scalefold(
            processes, "evaluate", CHECKPOINT, "-c", CONFIG, "--shards", SHARDS, "--out", out,
            "--device", "cpu",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        scores.append(json.loads(out.read_text())["mean"])
    for split, means in scores[0].items():
        for metric, value in means.items():
            assert scores[1][split][metric] == pytest.approx(value, abs=1e-4)


def test_the_others_end_with_the_first(tmp_path: Path) -> None:
    done = _scalefold(
        2, "predict", "--shards", tmp_path, "-w", CHECKPOINT, "--device", "cpu",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
