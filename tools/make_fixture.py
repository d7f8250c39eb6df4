"""Make a compatibility fixture with the code that is checked out.

Usage, from the root of the repository: ``python tools/make_fixture.py tests/data/<commit>``.

The folder holds ``config.yaml`` and ``chains.tsv``. The script adds what the commands make of them:
``run/`` is a run's folder with shards, a training of a few steps and its evaluation; ``expected/``
is what the same code computes from there. Only commands are called, so the script works with any
version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

STEPS: Final = 4
"""Steps of the training in ``run/``, which ``config.yaml`` asks for."""
MORE_STEPS: Final = 8
"""Steps after the continuation in ``expected/``."""


def scalefold(*words: str | Path) -> str:
    """Run a command with one thread, and return what it prints."""
    command = [sys.executable, "-m", "scalefold", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def make_fixture(folder: Path) -> None:
    """Fill a folder that has ``config.yaml`` and ``chains.tsv``."""
    config = ("-c", folder / "config.yaml")
    run, expected = folder / "run", folder / "expected"
    for made in (run, expected):
        shutil.rmtree(made, ignore_errors=True)
    key = scalefold("config", "key", *config).strip()
    shards, training = run / "shards", run / "weights" / key
    checkpoint = training / f"step-{STEPS:08d}"
    with tempfile.TemporaryDirectory() as scratch:
        raw, longer = Path(scratch) / "raw", Path(scratch) / "longer"
        scalefold("fetch", *config, "--out", raw)
        scalefold("pack", *config, "--raw", raw, "--out", shards)
        scalefold("train", *config, "--shards", shards, "--out", training, "--device", "cpu")
        evaluation = run / "evaluation" / key / f"{checkpoint.name}.json"
        scalefold(
            "evaluate", checkpoint, *config, "--shards", shards, "--out", evaluation,
            "--device", "cpu",
        )  # fmt: skip
        forget_the_machine(training)

        shutil.copytree(training, longer)
        scalefold(
            "train", *config, "--shards", shards, "--out", longer, "--device", "cpu", "--resume",
            "--set", f"training.steps={MORE_STEPS}",
        )  # fmt: skip
        expected.mkdir()
        shutil.copy(longer / "metrics.jsonl", expected)
        for name in ("weights.pt", "averaged.pt"):
            shutil.copy(longer / f"step-{MORE_STEPS:08d}" / name, expected)
    (expected / "config.yaml").write_text(scalefold("config", "show", *config))


def forget_the_machine(training: Path) -> None:
    """Delete what only this machine needs, and the untrained weights."""
    for name in ("lock", "tensorboard", "step-00000000"):
        shutil.rmtree(training / name)
    (training / "step-00000000.ready").unlink()


if __name__ == "__main__":
    make_fixture(Path(sys.argv[1]))
