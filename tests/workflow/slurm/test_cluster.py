"""The cluster that the tests bring up leaves nothing behind."""

from __future__ import annotations

import os
import subprocess

from tests.workflow.slurm.cluster import kill_all, processes_of_jobs, wait_for


def test_what_jobs_have_started_is_found_and_ended_without_its_parent() -> None:
    name = f"none-{os.getpid()}"  # jobs of a cluster that is up stay as they are
    job = "trap '' TERM; (trap '' TERM; setsid sleep 600 & setsid sleep 600 &) & wait"
    environment = {**os.environ, "SLURM_CLUSTER_NAME": name}
    subprocess.run(["bash", "-c", job], env=environment, check=True)
    # Until each has become a sleeper; between its parent and it, it has no environment.
    wait_for(lambda: len(processes_of_jobs(name)) == 2, "two sleepers")
    kill_all(lambda: processes_of_jobs(name), "the end of two sleepers")
    assert processes_of_jobs(name) == []
