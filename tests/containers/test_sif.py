"""The SIF file runs, and the workflow runs its jobs in it (`--sdm apptainer`)."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.timeout(3600)]  # the first test of a run may build the image
Run = Callable[..., str]


@pytest.fixture
def call(workshop, apptainer: Path, tmp_path: Path) -> Run:
    """Run a program in a folder of its own, with Apptainer on the PATH; its output."""

    def run(*command: str | Path) -> str:
        path = f"{apptainer.parent}:/usr/local/bin:/usr/bin:/bin"
        return workshop.run(
            *command, log="sif", cwd=tmp_path, env={**os.environ, "PATH": path, "LC_ALL": "C"}
        )

    return run


def test_own_test_of_the_definition(call: Run, sif: Path) -> None:
    assert "MMseqs2 and Kalign are there" in call("apptainer", "test", sif)


def test_runs_as_the_caller(call: Run, sif: Path) -> None:
    assert call("apptainer", "exec", sif, "id", "-u") == str(os.getuid())
    assert "fetch" in call("apptainer", "exec", sif, "scalefold", "--help")
    assert "1.2.3" in call("apptainer", "inspect", sif)


def test_workflow_runs_its_jobs_in_the_image(call: Run, sif: Path, tmp_path: Path) -> None:
    for name in ("workflow", "envs", "demo", "containers"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("Snakefile", "config.yaml", "local"):
        shutil.copy(ROOT / name, tmp_path / name, follow_symlinks=False)
    (tmp_path / "sif.yaml").write_text(yaml.safe_dump({"container": str(sif)}))
    call(
        *(sys.executable, "-m", "snakemake", "--profile", "local", "--cores", "2", "--nocolor"),
        *("--sdm", "apptainer", "--configfile"),
        *("demo/config.yaml", "containers/smoke_test.yaml", "sif.yaml"),
    )
    run = tmp_path / "results/smoke_test"
    assert (run / "report.html").stat().st_size > 0
    (checkpoint,) = run.glob("**/step-00000002/checkpoint.json")
    # The checkout that this test runs from knows its commit; the image's installation has none.
    assert json.loads(checkpoint.read_text("utf-8"))["commit"] is None
