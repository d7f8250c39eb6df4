"""With given weights the workflow searches and predicts, and does nothing else."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

BPTI = "RPDFCLEPPYTGPCKARIIR"
"""The first residues of 5pti_A."""


@pytest.fixture(scope="module")
def predicted(finished: tuple[Any, str], new_workflow: Callable[..., Any]) -> Any:
    """A run without data that predicts with two checkpoints of another, searching before."""
    workflow = new_workflow("local", {})
    trained = finished[0].training()
    (workflow.folder / "one.fasta").write_text(f">one\n{BPTI}\n")
    settings = {
        "run_name": "micro",
        "predict": {
            "fasta": "one.fasta",
            "weights": [str(trained / f"step-0000000{step}") for step in (1, 2)],
        },
        "search": {"query_alone": True, "jobs": 2},  # without a step nothing is found
        "evaluation": {"recycling": 0},
    }
    (workflow.folder / "micro.yaml").write_text(yaml.safe_dump(settings))
    (workflow.folder / "chains.tsv").unlink()
    assert workflow.planned() == {"search_sequences": 2, "predict_given": 1, "config": 1}
    workflow.succeed()
    return workflow


def test_all_given_weights_predict(predicted: Any) -> None:
    folder = predicted.run / "predictions/given"
    models = json.loads((folder / "one/prediction.json").read_text())["models"]
    assert sorted(model["weights"]["step"] for model in models) == [1, 2]
    assert {path.suffix for path in (folder / "one").glob("rank_1_*")} == {".cif", ".pdb"}
    assert not (predicted.run / "weights").exists()


def test_a_second_run_does_nothing_and_other_settings_predict_anew(predicted: Any) -> None:
    assert predicted.planned() == {}
    again = predicted.planned("--config", "evaluation={recycling: 1}")
    assert again == {"predict_given": 1, "config": 1}


def test_a_run_that_lacks_weights_or_sequences_is_refused(predicted: Any, tmp_path: Path) -> None:
    code, output = predicted.outcome("--config", f"predict={{weights: [{tmp_path / 'gone.npz'}]}}")
    assert code != 0
    assert "gone.npz" in output
    path = predicted.folder / "micro.yaml"
    settings = path.read_text()
    path.write_text(settings.replace("fasta: one.fasta", "fasta: null"))
    code, output = predicted.outcome()
    path.write_text(settings)
    assert code != 0
    assert "set predict.fasta" in output


def test_a_sequence_that_fails_leaves_the_others_and_the_table(predicted: Any) -> None:
    (predicted.folder / "two.fasta").write_text(f">two\n{BPTI}\n>bad\n{BPTI}*{BPTI}\n")
    code, _ = predicted.outcome("--config", "predict={fasta: two.fasta}", "search={jobs: 1}")
    folder = predicted.run / "predictions/given"
    assert code != 0
    assert (folder / "two/prediction.json").is_file()
    with (folder / "predictions.tsv").open() as file:
        names = [row["name"] for row in csv.DictReader(file, delimiter="\t")]
    assert names == ["two", "bad", "one"]  # what the folder has from before is listed, too
