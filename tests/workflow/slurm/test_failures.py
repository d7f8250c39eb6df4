"""What goes wrong on clusters, and that the result is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.slurm.cluster import NODES, Cluster, ask, wait_for

pytestmark = pytest.mark.slurm
EVERY = 5
PROCESSES = 4
ENDLESS = {
    "steps": 1_000_000,
    "checkpoint_every": EVERY,
    "log_every": 1,
    "global_batch_size": PROCESSES,
    "loader_workers": 0,
    "max_recycling": 0,
}
"""A training that does not end by itself, however fast the machine."""
CONFIGURATION = ["seed=3", f"training={ENDLESS}"]


@pytest.fixture(scope="module")
def workflow(on_cluster: Callable[..., Any]) -> Any:
    """Data are packed, nothing is trained."""
    made = on_cluster(evaluation={"mode": "after"})
    made.succeed("--until", "index")
    return made


@pytest.fixture
def undisturbed(workflow: Any) -> Callable[[int], bytes]:
    """Gives the weights at a step of a training that nothing happened to."""

    def weights(step: int) -> bytes:
        out = workflow.folder / f"undisturbed/{step}"
        settings = [
            word for item in [*CONFIGURATION, f"training.steps={step}"] for word in ("--set", item)
        ]
        launcher = Path(sys.executable).with_name("scalefold-torchrun")
        command = [launcher, "--standalone", f"--nproc-per-node={PROCESSES}", "-m", "scalefold"]
        command += ["train", "--config", "micro.yaml", *settings]
        command += ["--shards", workflow.run / "shards", "--out", out]
        if not out.exists():
            # As many CPU threads as the cluster's processes have: their number decides roundings.
            one = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            subprocess.run(command, cwd=workflow.folder, env=one, check=True, capture_output=True)
        return (out / f"step-{step:08d}/weights.pt").read_bytes()

    return weights


class Training:
    """A training that has begun, as a test sees it."""

    def __init__(self, workflow: Any, cluster: Cluster, *options: str) -> None:
        self._cluster = cluster
        self.folder: Path = workflow.training(seed=3)
        self.log: Path = self.folder / "training.log"
        arguments = ["--until", "train", "--config", *CONFIGURATION]
        self.process = workflow.start(*options, *arguments, output=subprocess.PIPE)

    def published(self) -> list[int]:
        """Steps of the complete checkpoints."""
        return sorted(int(p.stem.removeprefix("step-")) for p in self.folder.glob("step-*.ready"))

    def reach(self, step: int) -> int:
        """Wait for the checkpoint of a step; returns the job."""
        try:
            wait_for(lambda: step in self.published(), f"the checkpoint of step {step}")
        except TimeoutError as error:
            error.add_note(ask("squeue") + "\n" + ask("sinfo"))
            error.add_note(self.log.read_text()[-3000:] if self.log.exists() else "no log yet")
            raise
        (job,) = self._cluster.running("train")
        return job

    def goes_on(self) -> tuple[int, bytes]:
        """Wait for the next scheduled checkpoint but one; returns its step and weights."""
        step = (self.published()[-1] // EVERY + 2) * EVERY
        self.reach(step)
        return step, (self.folder / f"step-{step:08d}/weights.pt").read_bytes()

    def says(self, text: str) -> None:
        """Wait until the log has a text."""
        wait_for(lambda: text in self.log.read_text(), f"'{text}' in {self.log}")


@pytest.fixture
def training(workflow: Any, cluster: Cluster) -> Iterator[Training]:
    """A training under way, in place of the one of the test before."""
    folder: Path = workflow.training(seed=3)
    if folder.exists():
        folder.rename(workflow.folder / f"used-{time.monotonic_ns()}")
    begun = Training(workflow, cluster)
    yield begun
    if begun.process.poll() is None:
        os.killpg(begun.process.pid, signal.SIGINT)
        begun.process.communicate()
    cluster.clear()


def test_preempted_training_goes_on(
    training: Training, cluster: Cluster, undisturbed: Callable[[int], bytes]
) -> None:
    job = training.reach(EVERY)
    # All nodes for a job of a partition with precedence.
    urgent = ["--partition=urgent", f"--nodes={NODES}", "--exclusive", "--wrap=sleep 1"]
    subprocess.run(["sbatch", "--output=/dev/null", *urgent], check=True)
    training.says("stopped by SIGTERM")
    wait_for(lambda: cluster.running("train") == [job], "the same job to run again")
    step, weights = training.goes_on()
    assert weights == undisturbed(step)


def test_time_limit_leads_to_a_checkpoint_and_on(
    training: Training, cluster: Cluster, undisturbed: Callable[[int], bytes]
) -> None:
    job = training.reach(EVERY)
    # Slurm sends the profile's signal 30 s before the end, or up to a minute earlier, and looks
    # twice a minute: an end in the minute that runs could come before it.
    minutes = int(ask("squeue", "-h", "-j", str(job), "-o", "%M").split(":")[0]) + 2
    ask("scontrol", "update", f"jobid={job}", f"timelimit={minutes}")
    training.says("stopped by SIGUSR1")
    ask("scontrol", "update", f"jobid={job}", "timelimit=60")
    wait_for(lambda: cluster.running("train") == [job], "the same job to run again")
    step, weights = training.goes_on()
    assert weights == undisturbed(step)


def test_node_that_fails(
    training: Training, cluster: Cluster, undisturbed: Callable[[int], bytes]
) -> None:
    job = training.reach(EVERY)
    ask("scontrol", "update", f"nodename={cluster.nodes_of(job)[-1]}", "state=down", "reason=test")
    wait_for(lambda: cluster.states(job) == ["NODE_FAIL", "RUNNING"], "the job to run again")
    step, weights = training.goes_on()
    assert weights == undisturbed(step)


def test_killed_snakemake_leaves_one_writer(
    training: Training, workflow: Any, cluster: Cluster, undisturbed: Callable[[int], bytes]
) -> None:
    first = training.reach(EVERY)
    os.killpg(training.process.pid, signal.SIGKILL)
    training.process.communicate()
    locked = Training(workflow, cluster)
    assert "--unlock" in "".join(locked.process.communicate())
    workflow.succeed("--unlock")
    # The job is still there, and another one is refused.
    second = Training(workflow, cluster, "--retries", "0")
    output = "".join(second.process.communicate())
    assert second.process.returncode != 0, output
    assert "another training run writes here" in training.log.read_text()
    assert cluster.running("train") == [first]
    cluster.clear()
    third = Training(workflow, cluster)
    step, weights = third.goes_on()
    os.killpg(third.process.pid, signal.SIGINT)
    third.process.communicate()
    assert weights == undisturbed(step)


def test_ctrl_c_cancels_the_jobs_and_the_training_leaves_a_checkpoint(
    training: Training, workflow: Any, cluster: Cluster, undisturbed: Callable[[int], bytes]
) -> None:
    job = training.reach(EVERY)
    os.killpg(training.process.pid, signal.SIGINT)
    output = "".join(training.process.communicate())
    assert training.process.returncode == 1, output
    # It queues up again where Slurm stops it for others, not where its user does.
    wait_for(lambda: not ask("squeue", "-h"), "an empty queue")
    assert cluster.states(job) == ["CANCELLED"]
    assert "stopped by SIGTERM" in training.log.read_text()
    stopped = training.published()[-1]
    again = Training(workflow, cluster)
    step, weights = again.goes_on()
    os.killpg(again.process.pid, signal.SIGINT)
    again.process.communicate()
    assert f"step-{stopped:08d}" in training.log.read_text()
    assert weights == undisturbed(step)


def test_evaluator_holds_no_gpu_while_training_is_queued(workflow: Any, cluster: Cluster) -> None:
    busy = ["--partition=gpu", f"--nodes={NODES - 1}", "--exclusive", "--wrap=sleep 600"]
    blocker = ask("sbatch", "--parsable", "--output=/dev/null", *busy)
    wait_for(lambda: cluster.idle_nodes() == 1, "one idle node")  # training needs two
    settings = ["seed=4", "evaluation={mode: async}"]
    process = workflow.start("--config", *settings, output=subprocess.PIPE)
    wait_for(lambda: cluster.pending("train"), "the training in the queue")
    wait_for(lambda: cluster.pending("evaluate_all"), "the evaluator in the queue")
    (evaluator,) = cluster.pending("evaluate_all")
    wait_for(lambda: len(cluster.states(evaluator)) > 1, "the evaluator to queue up again")
    assert not workflow.training(seed=4).exists()
    ask("scancel", blocker)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    evaluations = workflow.run / "evaluation" / workflow.training(seed=4).name
    assert len(list(evaluations.glob("step-*.json"))) == 4
    assert cluster.states(evaluator)[-1] == "COMPLETED"


def test_refused_submission_leaves_the_others_running(
    on_cluster: Callable[..., Any], cluster: Cluster
) -> None:
    workflow = on_cluster()
    fetched = workflow.run / "raw"
    only = ("--until", "fetch_structures", "fetch_alignments")
    absent = ("--set-resources", "fetch_alignments:slurm_partition=absent")
    code, output = workflow.outcome(*only, *absent)
    assert code != 0, output
    assert "Error in rule fetch_alignments" in output
    assert len(list(fetched.glob("fetched-structures-*.tsv"))) == 2
    assert not list(fetched.glob("fetched-alignments-*.tsv"))
    assert not ask("squeue", "-h")
    assert workflow.planned(*only) == {"fetch_alignments": 2}


def test_cancelled_evaluation_is_made_again(workflow: Any, cluster: Cluster) -> None:
    process = workflow.start(output=subprocess.PIPE)
    wait_for(lambda: cluster.running("evaluate_all"), "an evaluation")
    job = cluster.running("evaluate_all")[0]
    ask("scancel", str(job))
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    records = cluster.records("evaluate_all", workflow.folder)
    states = {record.job: record.state for record in records}
    assert states[job] == "CANCELLED"
    assert len(list(workflow.evaluation().glob("step-*.json"))) == 4


def test_training_that_fails_for_good_ends_the_workflow(workflow: Any) -> None:
    (workflow.folder / "damaged.pt").write_bytes(b"no weights")
    settings = "training={initial_weights: damaged.pt, steps: 5}"
    mode = "evaluation={mode: async}"
    code, output = workflow.outcome("--config", settings, mode, "--retries", "0")
    assert code != 0
    assert "Error in rule train" in output


def test_full_disk(workflow: Any, tmp_path: Path) -> None:
    results = tmp_path / "scratch"
    results.mkdir()
    ask("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(results))
    try:
        ballast = results / "ballast"
        ballast.write_bytes(bytes(7_900_000))
        arguments = ["--config", f"results={results}"]
        code, output = workflow.outcome(*arguments, "--retries", "0")
        assert code != 0, output
        logs = (workflow.folder / ".snakemake/slurm_logs").rglob("*.log")
        assert any("no space left" in path.read_text().lower() for path in logs)
        ballast.unlink()
        ask("mount", "-o", "remount,size=400m", str(results))
        workflow.succeed(*arguments)
        assert (results / "micro/report.html").is_file()
    finally:
        ask("umount", str(results))
