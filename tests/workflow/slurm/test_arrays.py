"""Jobs of a rule as one array of Slurm's, which a site may ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.workflow.slurm.cluster import ask

pytestmark = pytest.mark.slurm
RULES = ("fetch_structures", "fetch_alignments", "structures", "pack")
WIDE = ("--jobs", "10000", "--max-jobs-per-timespan", "10000/1s")
"""The plugin (2.8) loses jobs of which only some may be submitted at a time."""


def test_buckets_are_tasks_of_arrays(on_cluster: Callable[..., Any]) -> None:
    workflow = on_cluster(data={"buckets": 24})
    # The plugin asks for more than this, so all memory of a node would be too much.
    memory = ("--set-resources", "structures:mem_mb=500", "pack:mem_mb=500")
    workflow.succeed("--slurm-array-jobs", ",".join(RULES), *WIDE, *memory, "--until", "pack")
    buckets = len(list((workflow.run / "shards").glob("msa-*.arrow")))
    assert buckets > 1
    table = ask("sacct", "-X", "-n", "-P", "-S", "now-1day", "-o", "JobID,Comment,State,WorkDir")
    tasks: Counter[str] = Counter()
    for line in table.splitlines():
        job, comment, state, where = line.split("|")
        if where == str(workflow.folder):
            assert state == "COMPLETED"
            tasks[comment.partition("_wildcards_")[0]] += "_" in job
    assert tasks["rule_fetch_structures"] == tasks["rule_fetch_alignments"] == buckets
