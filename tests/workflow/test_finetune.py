"""`scalefold finetune`: one command from a folder of structures to weights that are compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalefold.config import load_config, run_key

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "training.steps": 4,
    "training.checkpoint_every": 2,
    "training.global_batch_size": 1,
    "training.max_recycling": 0,
    "evaluation.recycling": 0,
}


def _finetune(workflow: Any, *more: str) -> tuple[int, str]:
    """Fine-tune what the workflow has trained on its own structures."""
    words = ["structures", "--weights", str(workflow.training() / "step-00000002")]
    words += ["--out", "results/tuned", "--query-alone", "--clusters", "none", "--validation", "1"]
    words += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "scalefold", "finetune", *words, *more],
        cwd=workflow.folder,
        env={**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def tuned(finished: tuple[Any, str]) -> tuple[Any, int, str]:
    """The workflow after a fine-tuning, with its exit code and output."""
    workflow = finished[0]
    structures = workflow.folder / "structures"
    structures.mkdir()
    for path in (workflow.folder / "mirror/wwpdb").rglob("*.cif.gz"):
        (structures / path.name).symlink_to(path)
    (structures / "no-protein.pdb").write_text("not a protein\n")
    return workflow, *_finetune(workflow)


@pytest.mark.slow
def test_given_weights_and_all_checkpoints_are_evaluated(tuned: tuple[Any, int, str]) -> None:
    workflow, code, output = tuned
    assert code == 2, output  # done, and some structures could not be used
    assert "no-protein.pdb" in output
    assert "results/tuned/input/rejected.tsv" in output.splitlines()[-1]
    run = workflow.folder / "results/tuned"
    config = load_config([run / "finetune.yaml"])
    evaluations = run / "evaluation" / run_key(config)
    found = [json.loads(path.read_text()) for path in sorted(evaluations.glob("*.json"))]
    assert [one["step"] for one in found] == [0, 2, 4]
    # Before the first step, the averaged weights are those that were given.
    given, start = (
        json.loads((folder / "checkpoint.json").read_text())["files"]
        for folder in (
            workflow.training() / "step-00000002",
            run / "weights" / run_key(config) / "step-00000000",
        )
    )
    assert start["averaged.pt"] == given["averaged.pt"]
    assert (run / "report.html").is_file()
    before = found[0]["mean"]["validation"]["lddt_ca"]
    assert f"{before:.3f} with the given weights" in output


@pytest.mark.slow
def test_the_same_command_goes_on_and_has_nothing_to_do(tuned: tuple[Any, int, str]) -> None:
    code, output = _finetune(tuned[0])
    assert code == 2, output
    assert "Nothing to be done" in output


@pytest.mark.slow
def test_an_edited_configuration_is_run(tuned: tuple[Any, int, str]) -> None:
    path = tuned[0].folder / "results/tuned/finetune.yaml"
    path.write_text(path.read_text().replace("steps: 4", "steps: 6"))
    code, output = _finetune(tuned[0], "--", "--dry-run")
    assert code == 2, output
    assert "checkpoint train" in output


@pytest.mark.slow
def test_a_list_without_a_chain_to_train_on_is_refused(tuned: tuple[Any, int, str]) -> None:
    path = tuned[0].folder / "results/tuned/input/chains.tsv"
    path.write_text(path.read_text().replace("\ttrain\t", "\ttemplate\t"))
    code, output = _finetune(tuned[0], "--prepare-only")
    assert code == 2, output
    assert f"{path.relative_to(tuned[0].folder)}: no chain of split train" in output
