"""Two processes are measured against one, and train as it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from scalefold.bench.scaling import bench_scaling
from scalefold.config import Config, config_to_yaml
from scalefold.errors import InputError
from scalefold.parallel import SINGLE


def test_one_process_has_nobody_to_compare_with(
    config: Config, shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="torchrun"):
        bench_scaling(
            config,
            shards,
            tmp_path / "scaling.json",
            steps=1,
            device=torch.device("cpu"),
            mesh=SINGLE,
            console=Console(quiet=True),
        )


def _two_processes(
    config: Config, shards: Path, out: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    (out.parent / "config.yaml").write_text(config_to_yaml(config))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "scalefold", "bench", "scaling", "-c", str(out.parent / "config.yaml"),
        "--shards", str(shards), "--steps", "2", "-o", str(out), *more,
    ]  # fmt: skip
    return subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    "more",
    [
        ("--device", "cpu", "-s", "training.stepss=3"),
        ("--device", "cpu", "--shards", "nowhere"),
        ("--device", "tpu"),
    ],
)
def test_what_both_find_wrong_is_said_once(
    config: Config, shards: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    done = _two_processes(config, shards, tmp_path / "scaling.json", *more)
    assert done.returncode == 1
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1


def test_two_processes_that_share_a_sample_train_as_one_does(
    config: Config, shards: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scaling.json"
    more = ("--device", "cpu", "-s", "parallel.dap=2", "-s", "training.precision=fp32")
    done = _two_processes(config, shards, out, *more)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert (result["processes"], result["processes_a_sample"]) == (2, 2)
    assert result["training_steps"]["largest_relative_difference"] < 1e-4
    assert result["training_steps"]["processes_have_equal_weights"]
    assert result["gradient"]["error_of_one"] == 0
    assert result["gradient"]["agrees"]


def test_two_processes_train_as_one_does(config: Config, shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "scaling.json"
    done = _two_processes(
        config, shards, out, "--device", "cpu", "-s", "optimiser.clip_scope=global"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())

    steps = result["training_steps"]
    assert len(steps["losses"]["one"]) == len(steps["losses"]["all"]) == 2
    # Two terms have one sum (clipped one by one, their products may be rounded or not).
    assert steps["largest_relative_difference"] == 0
    assert steps["processes_have_equal_weights"]
    assert steps["equal_to_one_process"]
    seconds = result["step_seconds_by_recycling"]
    assert len(seconds["one"]) == len(seconds["all"]) == 2
    assert result["efficiency"] == pytest.approx(
        sum(seconds["one"]) / sum(seconds["all"]), abs=1e-4
    )
    assert (result["processes"], result["device"]) == (2, "CPU")
