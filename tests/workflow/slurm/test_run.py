"""`snakemake --profile slurm` on a cluster: from raw files to the report, and single stages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.workflow.slurm.cluster import Cluster, ask

pytestmark = pytest.mark.slurm
STEPS = [0, 20, 40, 60]


def jobs(output: str) -> list[str]:
    """Rules of the jobs that ended, sorted."""
    return sorted(re.findall(r"^Finished jobid: \d+ \(Rule: (\w+)\)$", output, re.MULTILINE))


def test_from_raw_files_to_the_report(finished: tuple[Any, str]) -> None:
    workflow, _ = finished
    report = json.loads((workflow.run / "report.json").read_text())
    assert report
    evaluations = sorted(workflow.evaluation().glob("step-*.json"))
    assert [json.loads(path.read_text())["step"] for path in evaluations] == STEPS


def test_training_ran_on_two_nodes_in_one_job(finished: tuple[Any, str], cluster: Cluster) -> None:
    (train,) = cluster.records("train", finished[0].folder)
    assert train.state == "COMPLETED"
    assert re.fullmatch(r"node\[\d[-,]\d\]", train.nodes)
    columns = "NNodes,NTasks,NCPUS,AllocTRES"
    (step,) = ask("sacct", "-n", "-P", "-j", f"{train.job}.0", "-o", columns).splitlines()
    *numbers, allocated = step.split("|")
    assert numbers == ["2", "2", "4"]  # two CPUs a task, as the profile's set-threads says
    assert "gres/gpu=4" in allocated.split(",")  # both GPUs of both nodes


def test_no_job_is_given_a_task_for_each_gpu(finished: tuple[Any, str], cluster: Cluster) -> None:
    """It would hide all GPUs but one from a task, and be refused by Slurm 24.05."""
    for rule in ("train", "evaluate_all"):
        for record in cluster.records(rule, finished[0].folder):
            submitted = ask("sacct", "-X", "-n", "-P", "-j", str(record.job), "-o", "SubmitLine")
            assert "gpu" in submitted
            assert "--ntasks-per-gpu" not in submitted


def test_checkpoints_were_evaluated_beside_the_training(
    finished: tuple[Any, str], cluster: Cluster
) -> None:
    (train,) = cluster.records("train", finished[0].folder)
    *_, beside = cluster.records("evaluate_all", finished[0].folder)
    assert beside.state == "COMPLETED"
    assert beside.start < train.end
    paths = finished[0].evaluation().glob("step-*.json")
    assert min(path.stat().st_mtime for path in paths) < train.end.timestamp()
    assert cluster.records("evaluate", finished[0].folder) == []


def test_second_run_does_nothing(finished: tuple[Any, str]) -> None:
    workflow, _ = finished
    assert "Nothing to be done" in workflow.succeed()


def test_evaluation_equals_a_synchronous_one(finished: tuple[Any, str]) -> None:
    workflow, _ = finished
    path = workflow.evaluation() / "step-00000040.json"
    before = path.read_bytes()
    path.unlink()
    (workflow.run / "report.html").unlink()
    assert jobs(workflow.succeed()) == ["all", "evaluate", "report"]
    assert path.read_bytes() == before


def test_identical_shards_are_not_evaluated_again(finished: tuple[Any, str]) -> None:
    workflow, _ = finished
    next((workflow.run / "shards").glob("msa-*.arrow")).unlink()
    output = workflow.succeed()
    assert jobs(output) == ["all", "index", "pack", "report", "train"]


def test_single_stages_run_again(finished: tuple[Any, str]) -> None:
    workflow, _ = finished
    assert jobs(workflow.succeed("--forcerun", "report")) == ["all", "report"]
    assert jobs(workflow.succeed("-R", "index", "--until", "index")) == ["index"]


@pytest.mark.parametrize("option", ["--dry-run", "--dag", "--unlock", "--summary", "--lint"])
def test_planning_waits_for_nothing(finished: tuple[Any, str], option: str) -> None:
    workflow, _ = finished
    workflow.succeed(option, "--config", "seed=5")
