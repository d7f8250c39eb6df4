"""A cluster for the session, and small workflows on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflow.slurm.cluster import Cluster, obstacle

SETTINGS = {
    "data": {"buckets": 2},
    "training": {
        "steps": 60,
        "checkpoint_every": 20,
        "global_batch_size": 4,
        "loader_workers": 0,
    },
    "evaluation": {"mode": "async"},
}
SITE = {
    "default-resources": {"slurm_partition": "cpu", "mem_mb": 500, "runtime": 10},
    "set-resources": {
        "train": {
            "slurm_partition": "gpu",
            "nodes": 2,
            "processes": 2,
            "tasks": 2,
            "gres": "'gpu:2'",
            "mem_mb": 3000,
            "runtime": 30,
            "slurm_extra": "'--signal=USR1@30 --requeue --open-mode=append'",
        },
        "evaluate": {"slurm_partition": "gpu", "mem_mb": 1500, "runtime": 10},
        "evaluate_all": {"slurm_partition": "gpu", "mem_mb": 1500, "runtime": 10},
    },
    "set-threads": {"train": 2},
    "latency-wait": 10,
    "seconds-between-status-checks": 2,
    "slurm-init-seconds-before-status-checks": 2,
}
"""What a site with these nodes writes into the profile."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes with two GPUs each."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def on_cluster(cluster: Cluster, new_workflow: Callable[..., Any]) -> Callable[..., Any]:
    """Makes workflows for the profile ``slurm`` as this site has edited it."""

    def make(**settings: Any) -> Any:
        workflow = new_workflow("slurm", _merged(SETTINGS, settings))
        path: Path = workflow.folder / "workflow/profiles/slurm/config.yaml"
        path.write_text(yaml.safe_dump(_merged(yaml.safe_load(path.read_text()), SITE)))
        return workflow

    return make


@pytest.fixture(scope="session")
def finished(on_cluster: Callable[..., Any]) -> tuple[Any, str]:
    """The workflow after one whole run, and what that printed."""
    workflow = on_cluster()
    started = time.monotonic()
    output = workflow.succeed()
    print(f"from raw files to the report: {time.monotonic() - started:.0f} s")
    return workflow, output


def _merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    both = {**base, **top}
    for key in base.keys() & top.keys():
        if isinstance(base[key], dict) and isinstance(top[key], dict):
            both[key] = _merged(base[key], top[key])
    return both
