"""Evaluation of each checkpoint beside training."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINING = {"steps": 40, "checkpoint_every": 10, "log_every": 1, "max_recycling": 0}
PLANNING = ["--dry-run", "--lint", "--dag", "--rulegraph", "--summary", "--unlock"]


@pytest.fixture(scope="module")
def workflow(new_workflow: Callable[..., Any]) -> Any:
    """Data are packed, nothing is trained."""
    made = new_workflow("local", {"training": TRAINING, "evaluation": {"mode": "async"}})
    made.succeed("--until", "index")
    return made


@pytest.fixture(scope="module")
def finished(workflow: Any) -> tuple[Any, str]:
    """The workflow after one whole run, and what that printed."""
    return workflow, workflow.succeed()


@pytest.mark.parametrize("option", PLANNING)
def test_planning_waits_for_nothing(workflow: Any, option: str) -> None:
    workflow.succeed(option)


def test_every_checkpoint_is_evaluated(finished: tuple[Any, str]) -> None:
    workflow, output = finished
    steps = [
        json.loads(p.read_text())["step"] for p in sorted(workflow.evaluation().glob("*.json"))
    ]
    assert steps == [0, 10, 20, 30, 40]
    assert output.count("(Rule: report)") == 1
    assert "Nothing to be done" in workflow.succeed()


def test_results_are_those_of_an_evaluation_after_training(
    finished: tuple[Any, str], tmp_path: Path
) -> None:
    folder = shutil.copytree(finished[0].folder, tmp_path / "copy", symlinks=True)
    workflow = dataclasses.replace(finished[0], folder=folder)
    path = workflow.evaluation() / "step-00000020.json"
    before = path.read_bytes()
    path.unlink()
    planned = workflow.planned("--config", "evaluation={mode: after}")
    assert planned["evaluate"] == 1
    workflow.succeed("--config", "evaluation={mode: after}")
    assert scores(path.read_bytes()) == scores(before)


def scores(content: bytes) -> dict[str, Any]:
    evaluation = json.loads(content)
    del evaluation["config_hash"]  # of the whole configuration, evaluation.mode included
    del evaluation["commit"]  # another one, if it is made while the test runs
    return evaluation


def test_other_initial_weights_under_the_same_name_are_trained_and_evaluated_anew(
    finished: tuple[Any, str],
) -> None:
    workflow, _ = finished
    given = workflow.folder / "given.pt"
    start = {"steps": 1, "max_recycling": 0, "initial_weights": "given.pt"}
    again = ("--config", f"training={json.dumps(start)}")
    scored = []
    for step in (0, 40):
        shutil.copy(workflow.training() / f"step-{step:08d}/averaged.pt", given)
        said = "given.pt: other initial weights than those" in workflow.succeed("--dry-run", *again)
        assert said == (step == 40)
        workflow.succeed(*again)
        training = workflow.training(training={"initial_weights": "given.pt"})
        evaluations = sorted((workflow.run / "evaluation" / training.name).glob("*.json"))
        assert [path.stem for path in evaluations] == [f"step-{n:08d}" for n in (0, 1)]
        alone = workflow.evaluation() / f"step-{step:08d}.json"
        scored.append(json.loads(evaluations[0].read_text())["chains"])
        assert scored[-1] == json.loads(alone.read_text())["chains"]
    assert scored[0] != scored[1]
    assert "train" not in workflow.planned(*again)
    os.utime(given, (1, 1))  # as of a file that was moved there, older than what was made of it
    assert workflow.planned(*again)["train"] == 1
    assert "other initial weights" not in workflow.succeed("--dry-run", *again)
    assert len(list((training / "replaced/1").glob("step-*.ready"))) == 2


def test_training_goes_first_where_there_is_one_gpu(finished: tuple[Any, str]) -> None:
    workflow, _ = finished
    ended = (workflow.training() / "training.done").stat().st_mtime
    evaluated = [path.stat().st_mtime for path in workflow.evaluation().glob("*.json")]
    assert ended < min(evaluated)


def test_a_dry_run_says_that_weights_are_not_there(workflow: Any) -> None:
    code, output = workflow.outcome("-n", "--config", "training={initial_weights: absent.pt}")
    assert code != 0
    assert "absent.pt" in output


def test_training_that_fails_after_its_retries_ends_the_workflow(workflow: Any) -> None:
    (workflow.folder / "damaged.pt").write_bytes(b"no weights")
    settings = "training={initial_weights: damaged.pt, steps: 5}"
    code, output = workflow.outcome("--resources", "gpu=2", "--retries", "1", "--config", settings)
    assert code != 0
    assert output.count("Error in rule train") == 2
    assert "(Rule: evaluate_all)" in output  # has ended, without anything to evaluate


def test_killed_workflow_goes_on(workflow: Any) -> None:
    settings = ["seed=2", "training={steps: 400, checkpoint_every: 100, max_recycling: 0}"]
    options = ["--resources", "gpu=2", "--config", *settings]
    training = workflow.training(seed=2)
    evaluations = workflow.run / "evaluation" / training.name
    process = workflow.start(*options)
    while not list(evaluations.glob("*.json")):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (training / "training.done").exists()
    workflow.succeed("--unlock")
    last = int(sorted(training.glob("step-*.ready"))[-1].stem.removeprefix("step-"))
    options[-1] = options[-1].replace("steps: 400", f"steps: {last + 100}")
    workflow.succeed(*options)
    evaluated = sorted(json.loads(p.read_text())["step"] for p in evaluations.glob("*.json"))
    assert evaluated == list(range(0, last + 101, 100))
    assert not (training / "replaced").exists()


def test_target_ends_the_training(workflow: Any) -> None:
    # Only an evaluation beside the training can end it: this one would take many minutes.
    steps = 100_000
    settings = f"training={{steps: {steps}, checkpoint_every: 100, max_recycling: 0}}"
    target = "evaluation={mode: async, target_lddt: 0.001}"
    workflow.succeed("--resources", "gpu=2", "--config", "seed=1", settings, target)
    training = workflow.training(seed=1)
    published = [path.stem for path in sorted(training.glob("step-*.ready"))]
    evaluated = [p.stem for p in sorted(workflow.run.glob(f"evaluation/{training.name}/*.json"))]
    assert published[-1] < f"step-{steps:08d}"
    assert evaluated == published
