"""Ranks that share a sample (Dynamic Axial Parallelism) compute what one process computes.

Sizes are odd, so that rows and residues are padded. The float64 pass differs by the order of sums
alone: 1e-10 of the largest element is 10^5 roundings. Trainings in float32 may differ by 1e-4.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.config import Config, config_to_yaml, make_config
from scalefold.config.load import merge
from scalefold.parallel import SINGLE

from . import dap_runs
from .test_golden_loss import prepare

LAYOUTS = ((2, 2), (1, 3), (1, 4))
"""(data, dap)"""
ODD = {
    "features": {"crop_size": 27, "max_msa_clusters": 9, "max_extra_msa": 13},
    "model": {"evoformer": {"num_blocks": 1}, "structure": {"num_layers": 2}, "pae_head": True},
    "loss": {"pae": 0.1, "violation": 0.0},
    "optimiser": {"clip_norm": 0.5, "learning_rate": 1e-3},
    "training": {"steps": 3, "global_batch_size": 2, "max_recycling": 1, "compile": False},
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path, Path]:
    folder = tmp_path_factory.mktemp("dap")
    config, shards = prepare(folder)
    config = make_config(merge(config.model_dump(mode="json"), ODD))
    (folder / "config.yaml").write_text(config_to_yaml(config))
    return config, shards, folder


@pytest.fixture(scope="module")
def alone(prepared: tuple[Config, Path, Path]) -> dict[str, Any]:
    config, shards, _ = prepared
    return dap_runs.found(config, shards, SINGLE, exact=True)


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: "{}x{}".format(*layout))
def together(request: pytest.FixtureRequest, prepared: tuple[Config, Path, Path]) -> list[Any]:
    """What each process found."""
    data, dap = request.param
    _, shards, folder = prepared
    out = folder / f"{data}x{dap}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={data * dap}", "-m", "tests.parity.dap_runs",
        folder / "config.yaml", shards, out, dap,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [torch.load(f"{out}-{rank}.pt") for rank in range(data * dap)]


def _close(mine: Any, theirs: Any, tolerance: float, what: str) -> None:
    mine, theirs = (torch.as_tensor(value, dtype=torch.float64) for value in (mine, theirs))
    assert mine.shape == theirs.shape, what
    apart = float((mine - theirs).abs().max())
    assert apart <= tolerance * max(float(theirs.abs().max()), 1e-3), (what, apart)


@pytest.mark.parametrize("checkpointing", dap_runs.CHECKPOINTING)
def test_a_pass_is_the_same(together: list[Any], alone: dict[str, Any], checkpointing: str) -> None:
    theirs = alone["passes"][checkpointing]
    for rank in together:
        mine = rank["passes"][checkpointing]
        for number, pair in enumerate(zip(mine["outputs"], theirs["outputs"], strict=True)):
            _close(*pair, 1e-10, f"output {number}")
        for kind in ("terms", "gradients"):
            assert mine[kind].keys() == theirs[kind].keys()
            for name, value in mine[kind].items():
                _close(value, theirs[kind][name], 1e-10, name)
    for part in ("template", "extra_msa", "evoformer", "structure", "aux_heads"):
        found = [g for name, g in theirs["gradients"].items() if name.startswith(part)]
        assert any(float(gradient.abs().max()) > 0 for gradient in found), part


@pytest.mark.parametrize("scope", ["sample", "global"])
def test_a_training_is_the_same(together: list[Any], alone: dict[str, Any], scope: str) -> None:
    theirs = alone["training"][scope]
    for rank in together:
        mine = rank["training"][scope]
        for step, other in zip(mine["steps"], theirs["steps"], strict=True):
            _close(step["norm"], other["norm"], 1e-4, "norm")
            assert step["means"].keys() == other["means"].keys()
            for name, value in step["means"].items():
                _close(value, other["means"][name], 1e-4, name)
        for name, value in mine["weights"].items():
            _close(value, theirs["weights"][name], 1e-4, name)
        _close(mine["average"], theirs["average"], 1e-4, "average")
        # Weights never drift apart.
        assert all(torch.equal(v, together[0]["training"][scope]["weights"][n])
                   for n, v in mine["weights"].items())  # fmt: skip


@pytest.mark.parametrize("together", [(1, 2)], ids=["1x2"], indirect=True)
def test_twenty_exact_steps_are_the_same(together: list[Any], alone: dict[str, Any]) -> None:
    theirs = alone["exact_training"]
    for rank in together:
        for name, value in rank["exact_training"].items():
            _close(value, theirs[name], 1e-10, name)


def test_a_prediction_is_the_same(together: list[Any], alone: dict[str, Any]) -> None:
    """Aligned errors are kept in float32."""
    theirs = alone["prediction"]
    assert theirs["positions"].dtype == torch.float64
    for rank in together:
        for name, value in rank["prediction"].items():
            _close(value, theirs[name], 1e-6 if name == "pae" else 1e-10, name)
