"""The last ranks of a training evaluate its checkpoints, and change nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.train.test_ranks import GLOBAL, assert_same_end, steps
from tests.unit.train.torchrun import Trainings

from scalefold.config import make_config
from scalefold.config.load import merge
from scalefold.evaluate.follow import evaluation_path
from scalefold.evaluate.run import evaluate_weights

INSIDE = {"evaluation": {"mode": "async", "ranks": 1, "splits": ["train"]}}


@pytest.fixture
def trainings(micro_tree: dict[str, Any], shards: Path, tmp_path: Path) -> Trainings:
    return Trainings(tmp_path, shards, merge(micro_tree, GLOBAL))


def test_evaluations_are_those_of_evaluate_and_weights_those_without_them(
    trainings: Trainings, shards: Path, tmp_path: Path
) -> None:
    """Of a training that is killed twice, and goes on with other numbers of both kinds of ranks."""
    code, output = trainings.run(tmp_path / "alone", 2)
    assert code == 0, output
    trainings.tree = merge(trainings.tree, INSIDE)
    out = tmp_path / "weights" / "first"
    for evaluators, size, fault in (
        (1, 3, [{"rank": 1, "step": 4, "what": "SIGKILL", "after": 2}]),
        (0, 1, [{"step": 6, "what": "SIGKILL", "after": 4}]),
        (2, 3, []),
    ):
        trainings.tree = merge(trainings.tree, {"evaluation": {"ranks": evaluators}})
        code, output = trainings.run(out, size, *fault)
        assert (code != 0) == bool(fault), output
    assert steps(out) == [0, 2, 4, 6]
    assert_same_end(out, tmp_path / "alone")
    config = make_config(trainings.tree)
    for step in steps(out):
        path = evaluation_path(tmp_path / "evaluation" / "first", step)
        again = tmp_path / "again.json"
        evaluate_weights(config, out / path.stem, shards, again)
        assert path.read_bytes() == again.read_bytes()
        assert path.with_suffix(".tsv").read_bytes() == again.with_suffix(".tsv").read_bytes()


def test_ranks_that_share_a_sample_train_beside_one_that_evaluates_until_the_target(
    trainings: Trainings, tmp_path: Path
) -> None:
    target = {"evaluation": {"target_lddt": 0.0}, "parallel": {"dap": 2}}
    more = {"training": {"steps": 500, "checkpoint_every": 100}}
    trainings.tree = merge(merge(merge(trainings.tree, INSIDE), target), more)
    out = tmp_path / "weights" / "first"
    code, output = trainings.run(out, 3)
    assert code == 0, output
    assert "target reached" in output
    assert steps(out)[-1] < 500


def test_a_training_goes_on_without_evaluations_that_fail(
    trainings: Trainings, tmp_path: Path
) -> None:
    none = {"evaluation": {"splits": ["validation"]}}
    trainings.tree = merge(merge(trainings.tree, INSIDE), none)
    out = tmp_path / "weights" / "first"
    code, output = trainings.run(out, 2)
    assert code == 0, output
    assert steps(out)[-1] == 6
    assert output.count("is not evaluated") == len(steps(out))


def test_all_end_when_the_training_is_stopped_or_fails(
    trainings: Trainings, tmp_path: Path
) -> None:
    trainings.tree = merge(trainings.tree, INSIDE)
    for what in ("SIGTERM", "bug"):
        out = tmp_path / what / "weights" / "first"
        code, output = trainings.run(out, 2, {"step": 3, "what": what, "rank": 0})
        assert code == 1, output  # torchrun's, of a process that ended with 75 or a traceback
        assert steps(out)[-1] < 6
