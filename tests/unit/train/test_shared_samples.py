"""Processes that share samples train as one does, and a checkpoint goes to any layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.torchrun import Trainings
from tests.unit.train.trajectory import records

from scalefold.checkpoint.read import checkpoints, load_weights
from scalefold.config import make_config, run_key
from scalefold.config.load import merge

SHARED = {"parallel": {"dap": 2}}


@pytest.fixture
def trainings(micro_tree: dict[str, Any], shards: Path, tmp_path: Path) -> Trainings:
    return Trainings(tmp_path, shards, micro_tree)


def test_the_degree_is_no_part_of_a_run(micro_tree: dict[str, Any]) -> None:
    assert run_key(make_config(merge(micro_tree, SHARED))) == run_key(make_config(micro_tree))


def test_a_run_goes_on_at_another_degree(trainings: Trainings, tmp_path: Path) -> None:
    alone, out = tmp_path / "alone", tmp_path / "out"
    code, output = trainings.run(alone)
    assert code == 0, output
    trainings.tree = merge(trainings.tree, SHARED)
    code, output = trainings.run(out, 2, {"rank": 0, "step": 2, "what": "SIGUSR1"})
    assert "exitcode  : 75" in output, output
    trainings.tree = merge(trainings.tree, {"parallel": {"dap": 1}})
    code, output = trainings.run(out, 2, {"rank": 1, "step": 4, "what": "SIGUSR1"})
    assert "exitcode  : 75" in output, output
    trainings.tree = merge(trainings.tree, SHARED)
    code, output = trainings.run(out, 2)
    assert code == 0, output
    assert output.count("training step 6/6") == 1
    mine, theirs = records(out), records(alone)
    assert [record["step"] for record in mine] == [1, 2, 3, 4, 5, 6]
    for record, other in zip(mine, theirs, strict=True):
        assert record["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert record["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
    for name in ("weights", "averaged"):
        ours, others = (load_weights(checkpoints(f)[-1], name) for f in (out, alone))
        for key, tensor in ours.items():
            torch.testing.assert_close(tensor, others[key], rtol=1e-4, atol=1e-4)


def test_a_damaged_sample_is_said_once_and_the_steps_before_it_stay(
    trainings: Trainings, tmp_path: Path
) -> None:
    trainings.tree = merge(trainings.tree, SHARED)
    out = tmp_path / "out"
    code, output = trainings.run(out, 2, {"rank": 0, "step": 4, "what": "damaged"})
    assert code == 1
    assert output.count("error: msa-00000.arrow: row 7 is damaged") == 1
    assert [record["step"] for record in records(out)] == [1, 2, 3]
    assert checkpoints(out)[-1].name == "step-00000003"


def test_processes_that_cannot_share_are_told_before_anything_starts(
    trainings: Trainings, tmp_path: Path
) -> None:
    trainings.tree = merge(trainings.tree, {"parallel": {"dap": 3}})
    code, output = trainings.run(tmp_path / "out", 2)
    assert code == 1
    assert output.count("error: parallel.dap is 3, but there are 2 processes:") == 1
    assert not (tmp_path / "out").exists()
