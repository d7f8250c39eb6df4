"""Several trainings in a row, each from the weights of the one before, for real."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.config import load_stages, run_key
from scalefold.predict.model_cif import model_cif
from scalefold.raw.mmcif import read_entry

NAMES = ["small_batch", "large_batch", "finetuning"]
STAGES = {
    "small_batch": {},
    "large_batch": {"training": {"global_batch_size": 2}},
    "finetuning": {
        "features": {"crop_size": 24, "max_msa_clusters": 6, "max_extra_msa": 8},
        "loss": {"violation": 1.0},
        "optimiser": {"learning_rate": 5e-4},
    },
}
"""configs/scratch.yaml, small."""
BPTI = "RPDFCLEPPYTGPCKARIIR"
"""The first residues of 5pti_A."""


@pytest.fixture(scope="module")
def finished(new_workflow: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The workflow after one whole run, each checkpoint evaluated beside the training."""
    fasta = tmp_path_factory.mktemp("predict") / "one.fasta"
    fasta.write_text(f">one\n{BPTI}\n")
    search = {"query_alone": True, "jobs": 1}  # without a step nothing is found
    settings = {
        "stages": STAGES,
        "evaluation": {"mode": "async"},
        "predict": {"fasta": str(fasta)},
        "search": search,
    }
    workflow = new_workflow("local", settings)
    workflow.succeed()
    return workflow


def folders(workflow: Any) -> dict[str, Path]:
    stages = load_stages([workflow.folder / "micro.yaml"])
    return {name: workflow.run / "weights" / run_key(stage) for name, stage in stages.items()}


def test_each_stage_starts_from_the_averaged_weights_of_the_one_before(finished: Any) -> None:
    training = list(folders(finished).values())
    assert len(training) == 3
    for before, after in itertools.pairwise(training):
        last = torch.load(before / "step-00000002/averaged.pt", weights_only=True)
        first = torch.load(after / "step-00000000/weights.pt", weights_only=True)
        assert last.keys() == first.keys()
        assert all(torch.equal(last[name], first[name]) for name in last)


def test_the_last_weights_predict(finished: Any) -> None:
    *_, last = folders(finished).values()
    folder = finished.run / "predictions" / last.name / "step-00000002"
    record = json.loads((folder / "one/prediction.json").read_text())
    (model,) = record["models"]
    assert (model["weights"]["kind"], model["weights"]["step"]) == ("averaged", 2)
    assert "one" in (folder / "predictions.tsv").read_text()


def test_each_stage_has_its_settings_evaluations_and_report(finished: Any) -> None:
    sizes = []
    for name, folder in folders(finished).items():
        metadata = json.loads((folder / "step-00000002/checkpoint.json").read_text())
        sizes.append(metadata["config"]["training"]["global_batch_size"])
        evaluations = sorted((finished.run / "evaluation" / folder.name).glob("step-*.json"))
        assert [json.loads(path.read_text())["step"] for path in evaluations] == [0, 1, 2]
        report = json.loads((finished.run / f"report-{name}.json").read_text())
        assert report["provenance"]["run_key"] == folder.name
        assert [row["step"] for row in report["evaluations"]] == [0, 1, 2]
    assert sizes == [1, 2, 1]


def test_second_run_does_nothing(finished: Any) -> None:
    assert "Nothing to be done" in finished.succeed()


def test_evaluation_after_training_is_of_the_same_checkpoints(finished: Any) -> None:
    planned = finished.planned("--config", "evaluation={mode: after}")
    assert planned == {"config": 1}  # the record of the configuration


def test_what_is_deleted_is_made_again(finished: Any) -> None:
    report = finished.run / "report-large_batch.html"
    report.unlink()
    next((finished.run / "evaluation").glob("*/step-00000001.json")).unlink()
    output = finished.succeed()
    rules = re.findall(r"^(?:local)?rule (\w+):", output, re.MULTILINE)
    assert set(rules) == {"all", "evaluate", "report"}
    assert rules.count("evaluate") == 1
    assert report.is_file()


def test_a_changed_stage_concerns_those_after_it(finished: Any) -> None:
    changed = json.dumps({"large_batch": {"optimiser": {"clip_norm": 0.2}}})
    planned = finished.planned("--config", f"stages={changed}")
    assert planned["train"] == 2
    assert {"fetch_structures", "structures", "pack", "index"}.isdisjoint(planned)


@pytest.mark.skipif(importlib.util.find_spec("openmm") is None, reason="OpenMM is not installed")
def test_the_best_model_is_relaxed(finished: Any) -> None:
    """Few steps predict nothing that a force field could fix: the experiment stands in for it."""
    *_, last = folders(finished).values()
    name = f"{last.name}/step-00000002"
    (structure,) = (finished.run / "predictions" / name / "one").glob("rank_1_*.cif")
    (chain,) = read_entry(next((finished.folder / "mirror/wwpdb").rglob("5pti.cif.gz"))).chains
    positions = torch.from_numpy(chain.positions[:20]).clone()
    positions[10] += 1.5  # Å along each axis: two broken bonds
    atoms = positions, torch.from_numpy(chain.atom_mask[:20]), torch.full((20,), 70.0)
    aatype = torch.from_numpy(chain.aatype[:20]).long()
    structure.write_text(model_cif("one", aatype, *atoms))
    finished.succeed("--config", "predict={relax: true}")
    with (finished.run / "relaxed" / name / "relaxations.tsv").open() as file:
        (row,) = csv.DictReader(file, delimiter="\t")
    assert row["fate"] == "relaxed", row["reason"]
    assert int(row["broken_bonds_before"]) == 2
    assert float(row["violation_loss_after"]) < 0.5 * float(row["violation_loss_before"])
    assert (finished.run / "relaxed" / name / "one" / structure.name).is_file()
