"""GPUs that write to each other's memory exchange what collectives exchange, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def run(folder: Path, num_ranks: int, device_type: str, **variables: str) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={num_ranks}", "-m", "tests.parity.push_runs", folder, device_type,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.parametrize("num_ranks", [3])
def test_in_the_interpreter(tmp_path: Path, num_ranks: int) -> None:
    pytest.importorskip("triton")
    run(tmp_path, num_ranks, "cpu", TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_on_gpus(tmp_path: Path, num_ranks: int) -> None:
    if torch.cuda.device_count() < num_ranks:
        pytest.skip(f"needs {num_ranks} GPUs")
    run(tmp_path, num_ranks, "cuda")


@pytest.mark.gpu
def test_on_one_gpu(tmp_path: Path) -> None:
    alone = {"CUDA_VISIBLE_DEVICES": "0", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
    run(tmp_path, 2, "cuda", **alone)
