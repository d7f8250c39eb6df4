"""Self-distillation, for real: weights predict, and are trained on what they predicted."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.conftest import Workflow

from scalefold.config import load_stages, run_key
from scalefold.loader.sampler import TrainingSampler
from scalefold.shards.reader import ShardReader
from scalefold.shards.verify import verify

ALIGNMENTS = Path(__file__).parents[2] / "demo/mirror/openproteinset/pdb"
NAMES = ["1k6p_A", "3zee_A", "5pti_A"]
"""The last one is also among the experimental chains."""


@pytest.fixture(scope="module")
def finished(new_workflow: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The workflow after one whole run."""
    fasta = tmp_path_factory.mktemp("distil") / "some.fasta"
    files = [ALIGNMENTS / name / "a3m/swissprot_hits.a3m" for name in NAMES]
    sequences = [file.read_text().splitlines()[1] for file in files]
    records = [f">{name}\n{letters}\n" for name, letters in zip(NAMES, sequences, strict=True)]
    fasta.write_text("".join(records))
    settings = {
        "stages": {"first": {}, "second": {"sampling": {"distilled_share": 0.75}}},
        "distillation": {
            "fasta": str(fasta),
            "alignments": str(ALIGNMENTS),
            "jobs": 2,
            "min_length": 50,
            "min_alignment_rows": 5,
            "min_mean_plddt": 0,  # weights of two steps are sure of nothing
        },
        "features": {"distilled": {"min_plddt": 0}},
    }
    workflow = new_workflow("local", settings)
    workflow.succeed()
    return workflow


def keys(workflow: Any) -> list[str]:
    stages = load_stages([workflow.folder / "micro.yaml"])
    return [run_key(stage) for stage in stages.values()]


def test_the_first_weights_predict_what_the_second_training_reads(finished: Any) -> None:
    first, second = keys(finished)
    folder = finished.run / "distilled" / first
    with (folder / "shards/distilled.tsv").open() as file:
        fates = {row["name"]: row["fate"] for row in csv.DictReader(file, delimiter="\t")}
    assert fates == {"1k6p_A": "kept", "3zee_A": "kept", "5pti_A": "known"}
    trained = json.loads(
        (finished.run / "weights" / first / "step-00000002/checkpoint.json").read_text()
    )
    for record in folder.glob("predictions/*/*/prediction.json"):
        (model,) = json.loads(record.read_text())["models"]
        assert model["weights"]["sha256"] == trained["files"]["averaged.pt"]["sha256"]
    assert verify(folder / "shards") == []
    reader = ShardReader(folder / "shards")
    stage = load_stages([finished.folder / "micro.yaml"])["second"]
    sampler = TrainingSampler(reader.index, stage.sampling, stage.seed)
    drawn = [key.startswith("distilled_") for key in sampler.keys]
    assert sum(sampler.probabilities[drawn]) == pytest.approx(0.75)
    metadata, shards = [
        json.loads((finished.run / "weights" / key / "step-00000002/checkpoint.json").read_text())
        for key in (second, first)
    ]
    assert metadata["data_manifest_sha256"] != shards["data_manifest_sha256"]


def test_both_trainings_are_evaluated_on_the_experimental_chains(finished: Any) -> None:
    chains = []
    for key in keys(finished):
        path = finished.run / "evaluation" / key / "step-00000002.json"
        chains.append({chain["chain_key"] for chain in json.loads(path.read_text())["chains"]})
    assert "1ay7_B" in chains[0]
    assert chains[0] == chains[1]
    counts = [
        json.loads((finished.run / f"report-{name}.json").read_text())["provenance"]["data_counts"]
        for name in ("first", "second")
    ]
    assert [count.get("chains, distilled") for count in counts] == [None, 2]
    assert (finished.run / "report-second.html").is_file()


def test_a_second_run_does_nothing(finished: Any) -> None:
    assert finished.planned() == {}


def test_what_is_changed_concerns_what_is_made_of_it(finished: Any) -> None:
    others = finished.planned("--config", "distillation={min_alignment_rows: 8}")
    assert (others["distil"], others["train"]) == (1, 1)
    assert "predict_distilled" not in others
    share = json.dumps({"second": {"sampling": {"distilled_share": 0.5}}})
    others = finished.planned("--config", f"stages={share}")
    assert others["train"] == 1
    assert others.keys().isdisjoint({"predict_distilled", "distil", "index"})
    recycling = finished.planned("--config", "evaluation={recycling: 1}")
    assert recycling["predict_distilled"] == 2


def test_given_weights_predict(finished: Any) -> None:
    first, _ = keys(finished)
    checkpoint = f"results/micro/weights/{first}/step-00000002"
    (finished.folder / "some.pt").write_bytes(b"")
    for weights, model in ((checkpoint, ""), ("some.pt", "--config micro.yaml")):
        words = ["-n", "-p", "--config", f"distillation={{weights: {weights}}}"]
        _, output = finished.outcome(*words)
        (command, _) = re.findall("scalefold predict .*", output)
        assert f"--weights {weights}" in command
        assert model in command
        assert ("--config" in command) == bool(model)
        assert "distilled/given/shards/index.arrow" in output


def test_without_a_share_nothing_is_distilled(finished: Any) -> None:
    stages = 'stages={"second": {"sampling": {"distilled_share": 0}}}'
    _, output = finished.outcome("-n", "--config", stages)
    assert "distillation.fasta is" in output
    assert "sampling.distilled_share" in output


def test_a_workflow_without_it_has_no_such_job(template_folder: Path) -> None:
    planned = Workflow(template_folder).planned()
    assert planned.keys().isdisjoint({"predict_distilled", "distil", "search_sequences"})
