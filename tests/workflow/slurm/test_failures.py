"""What goes wrong on clusters, and that the result is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.slurm.cluster import NODES, Cluster, ask, wait_for

pytestmark = pytest.mark.slurm
STEPS = 120
SETTINGS = {"steps": STEPS, "checkpoint_every": STEPS, "global_batch_size": 4, "log_every": 1}
LONG = ["seed=3", f"training={ {**SETTINGS, 'loader_workers': 0, 'max_recycling': 0} }"]


@pytest.fixture(scope="module")
def workflow(on_cluster: Callable[..., Any]) -> Any:
    """Data are packed, nothing is trained."""
    made = on_cluster(evaluation={"mode": "after"})
    made.succeed("--until", "index")
    return made


@pytest.fixture(scope="module")
def undisturbed(workflow: Any) -> bytes:
    """The weights of a long training that nothing happened to."""
    workflow.succeed("--config", *LONG, "results=quiet", "--until", "train")
    (folder,) = (workflow.folder / "quiet/micro/weights").iterdir()
    return weights(folder)


def weights(folder: Path) -> bytes:
    return (folder / f"step-{STEPS:08d}/weights.pt").read_bytes()


class Training:
    """A training that has begun, as a test sees it."""

    def __init__(self, workflow: Any, cluster: Cluster, *arguments: str) -> None:
        self._workflow, self._cluster = workflow, cluster
        self.process = workflow.start(*arguments, output=subprocess.PIPE)
        self.log = workflow.run / "logs/train" / f"{self.folder.name}.log"

    @property
    def folder(self) -> Path:
        return self._workflow.training(seed=3)

    def steps(self) -> int:
        """Steps that the metrics tell of."""
        path = self.folder / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def reach(self, steps: int) -> int:
        """Wait until so many steps are made; returns the job."""
        wait_for(lambda: self.steps() >= steps, f"step {steps}", 120)
        (job,) = self._cluster.running("train")
        return job

    def weights(self) -> bytes:
        return weights(self.folder)

    def succeed(self) -> str:
        stdout, stderr = self.process.communicate(timeout=400)
        assert self.process.returncode == 0, stdout + stderr
        return stdout + stderr


@pytest.fixture
def training(workflow: Any, cluster: Cluster) -> Iterator[Training]:
    """A long training under way, in place of the one of the test before."""
    folder: Path = workflow.training(seed=3)
    if folder.exists():
        folder.rename(workflow.folder / f"used-{time.monotonic_ns()}")
    begun = Training(workflow, cluster, "--config", *LONG, "--until", "train")
    yield begun
    if begun.process.poll() is None:
        os.killpg(begun.process.pid, signal.SIGINT)
        begun.process.communicate(timeout=60)
    subprocess.run(["scancel", "--user=root"], check=True)
    wait_for(lambda: not ask("squeue", "-h"), "an empty queue")


def test_preempted_training_goes_on(
    training: Training, cluster: Cluster, undisturbed: bytes
) -> None:
    job = training.reach(10)
    # All nodes for a job of a partition with precedence.
    urgent = ["--partition=urgent", f"--nodes={NODES}", "--exclusive", "--wrap=sleep 5"]
    subprocess.run(["sbatch", "--output=/dev/null", *urgent], check=True)
    training.succeed()
    assert training.weights() == undisturbed
    assert cluster.states(job)[-1] == "COMPLETED"
    assert len(cluster.states(job)) == 2
    assert "stopped by SIGTERM" in training.log.read_text()


def test_time_limit_leads_to_a_checkpoint_and_on(
    training: Training, cluster: Cluster, undisturbed: bytes
) -> None:
    job = training.reach(10)
    # Slurm sends the profile's signal 30 s before the end, or up to a minute earlier.
    minutes = int(ask("squeue", "-h", "-j", str(job), "-o", "%M").split(":")[0]) + 1
    ask("scontrol", "update", f"jobid={job}", f"timelimit={minutes}")
    training.succeed()
    assert training.weights() == undisturbed
    assert "stopped by SIGUSR1" in training.log.read_text()
    assert len(cluster.states(job)) == 2


def test_node_that_fails(training: Training, cluster: Cluster, undisturbed: bytes) -> None:
    job = training.reach(10)
    node = cluster.nodes_of(job)[-1]
    ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        training.succeed()
    finally:
        ask("scontrol", "update", f"nodename={node}", "state=resume")
    assert training.weights() == undisturbed


def test_killed_snakemake_leaves_one_writer(
    training: Training, workflow: Any, undisturbed: bytes
) -> None:
    job = training.reach(5)
    os.killpg(training.process.pid, signal.SIGKILL)
    training.process.communicate()
    arguments = ["--config", *LONG, "--until", "train"]
    locked = workflow.start(*arguments, output=subprocess.PIPE)
    assert "--unlock" in "".join(locked.communicate())
    workflow.succeed("--unlock")
    # The job is still there: a second training is refused.
    second = workflow.start(*arguments, "--retries", "0", output=subprocess.PIPE)
    output = "".join(second.communicate(timeout=300))
    if second.returncode != 0:
        assert "another training writes here" in training.log.read_text(), output
    wait_for(lambda: not ask("squeue", "-h", "-j", str(job)), "the end of the first job", 300)
    workflow.succeed(*arguments)
    assert training.weights() == undisturbed


def test_cancelled_evaluation_is_made_again(workflow: Any, cluster: Cluster) -> None:
    process = workflow.start(output=subprocess.PIPE)
    wait_for(lambda: cluster.running("evaluate"), "an evaluation", 200)
    job = cluster.running("evaluate")[0]
    ask("scancel", str(job))
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    states = {record.job: record.state for record in cluster.records("evaluate")}
    assert states[job] == "CANCELLED"
    assert len(list(workflow.evaluation().glob("step-*.json"))) == 4


def test_training_that_fails_for_good_ends_the_workflow(workflow: Any) -> None:
    settings = "training={initial_weights: absent.pt, steps: 5}"
    mode = "evaluation={mode: async}"
    process = workflow.start("--config", settings, mode, "--retries", "0", output=subprocess.PIPE)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "checkpoint train" in stdout + stderr


def test_full_disk(workflow: Any, tmp_path: Path) -> None:
    results = tmp_path / "scratch"
    results.mkdir()
    ask("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(results))
    try:
        ballast = results / "ballast"
        ballast.write_bytes(bytes(7_900_000))
        arguments = ["--config", f"results={results}"]
        process = workflow.start(*arguments, "--retries", "0", output=subprocess.PIPE)
        output = "".join(process.communicate(timeout=300))
        assert process.returncode != 0
        assert "space" in output
        ballast.unlink()
        ask("mount", "-o", "remount,size=400m", str(results))
        workflow.succeed(*arguments)
        assert (results / "micro/report.html").is_file()
    finally:
        ask("umount", str(results))
