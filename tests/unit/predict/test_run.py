"""Prediction end to end, by its command."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
import torch
import yaml
from tests.unit.predict.conftest import ALIGNMENTS, example_state
from typer.testing import CliRunner

from scalefold.cli import app
from scalefold.config import Config
from scalefold.evaluate.run import evaluate_weights
from scalefold.model import AlphaFold
from scalefold.shards.reader import ShardReader


def predict(*words: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["predict", *map(str, words), "--device", "cpu"])
    assert result.exit_code == code, result.output
    return result


def table(out: Path) -> dict[str, dict[str, str]]:
    with (out / "predictions.tsv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "prediction.json").read_text())


def coordinates(path: Path) -> np.ndarray:
    structure = gemmi.read_structure(str(path))
    return np.array([atom.pos.tolist() for residue in structure[0][0] for atom in residue])


@pytest.fixture(scope="module")
def fasta(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two chains of the shards."""
    reader, path = ShardReader(shards), tmp_path_factory.mktemp("fasta") / "two.fasta"
    path.write_text(
        "".join(f">{key} x\n{reader.chain(key).sequence}\n" for key in reader.keys("train"))
    )
    return path


@pytest.fixture(scope="module")
def evaluated(micro: Config, checkpoint: Path, shards: Path, tmp_path_factory: Any) -> Path:
    out = tmp_path_factory.mktemp("evaluated")
    evaluate_weights(micro, checkpoint, shards, out / "e.json", ["train"], structures=out)
    return out


@pytest.mark.parametrize("of", ["fasta", "shards"])
def test_numbers_are_those_of_the_evaluation(of, fasta, shards, checkpoint, evaluated, tmp_path):
    given = [fasta, "--alignments", ALIGNMENTS] if of == "fasta" else ["--shards", shards]
    result = predict(*given, "-w", checkpoint, "--out", tmp_path)
    assert "averaged" in result.output
    chains = {c["chain_key"]: c for c in json.loads((evaluated / "e.json").read_text())["chains"]}
    assert len(chains) == 2
    for key, chain in chains.items():
        folder = tmp_path / key
        (model,) = record(folder)["models"]
        assert model["weights"]["kind"] == "averaged"
        # written with four digits by the evaluation, with two here
        assert model["plddt"] == pytest.approx(chain["per_residue"]["plddt"], abs=5.1e-3)
        assert float(table(tmp_path)[key]["mean_plddt"]) == pytest.approx(
            chain["mean_plddt"], abs=1e-4
        )
        expected = coordinates(evaluated / f"{key}.cif")
        for kind in ("model_cif", "pdb"):
            found = coordinates(folder / model["files"][kind])
            np.testing.assert_allclose(found, expected, atol=1.1e-3)


def test_an_interrupted_run_goes_on_with_what_is_missing(fasta, checkpoint, tmp_path, monkeypatch):
    command = [fasta, "--query-alone", "-w", checkpoint, "--out", tmp_path]
    forward = AlphaFold.forward

    def interrupted(self, features, *others):
        if features["aatype"].shape[1] > 60:
            raise KeyboardInterrupt
        return forward(self, features, *others)

    with monkeypatch.context() as patch:
        patch.setattr(AlphaFold, "forward", interrupted)
        predict(*command, code=130)
    (done,) = (path for path in tmp_path.iterdir() if path.is_dir())
    before = (done / "prediction.json").stat().st_mtime_ns
    killed = tmp_path / f".1a8o_A.tmp.{os.getpid()}"  # in a container numbers come again
    killed.mkdir()
    (killed / "rank_1_other.cif").touch()
    predict(*command)
    assert not list(tmp_path.rglob("rank_1_other.cif"))
    assert {row["fate"] for row in table(tmp_path).values()} == {"there", "predicted"}
    assert (done / "prediction.json").stat().st_mtime_ns == before
    assert not list(tmp_path.glob(".*"))
    page = (tmp_path / "predictions.html").read_text("utf-8")
    assert page.count("<article") == 2
    # with other settings nothing is overwritten, and one line says so for all targets
    result = predict(*command, "--recycling", "0", code=2)
    (line,) = (line for line in result.output.splitlines() if "recycling" in line)
    assert "recycling was 3 and is 0" in line
    assert "2 predictions" in line
    assert (done / "prediction.json").stat().st_mtime_ns == before


def test_the_tables_keep_what_the_folder_has(fasta, shards, checkpoint, tmp_path):
    shutil.copytree(ALIGNMENTS, alignments := tmp_path / "alignments")
    words = ["--alignments", alignments, "-w", checkpoint, "--out", out := tmp_path / "out"]
    predict(fasta, *words)
    before, sequence = table(out), ShardReader(shards).chain("5pti_A").sequence
    with next((alignments / "5pti_A/a3m").iterdir()).open("a") as file:
        file.write(f">more\n{sequence}\n")
    one = tmp_path / "one.fasta"
    one.write_text(f">5pti_A\n{sequence}\n")
    predict(one, *words, code=2)
    after = table(out)
    assert [(name, row["fate"]) for name, row in after.items()] == [
        ("5pti_A", "failed"), ("1a8o_A", "there"),
    ]  # fmt: skip
    assert "alignment" in after["5pti_A"]["reason"]
    for name, row in after.items():
        assert row["mean_plddt"] == before[name]["mean_plddt"]
    assert (out / "predictions.html").read_text("utf-8").count("<article") == 2


def test_settings_of_evaluations_alone_do_not_concern_predictions(fasta, checkpoint, tmp_path):
    words = [fasta, "--query-alone", "-w", checkpoint, "--out", tmp_path]
    predict(*words)
    others = ["max_length=500", "splits=[train]", "mode=async", "patience=3", "target_lddt=0.5"]
    # on a CPU, auto is fp32
    given = [word for one in [*others, "precision=fp32"] for word in ("-s", f"evaluation.{one}")]
    predict(*words, *given)
    assert {row["fate"] for row in table(tmp_path).values()} == {"there"}


def test_bad_records_are_listed_and_the_rest_goes_on(fasta, checkpoint, tmp_path):
    bad = tmp_path / "bad.fasta"
    bad.write_text(
        f">long\n{'MKVL' * 600}\n>stop\nMKV*\n>../../evil\nMKVLAY\n>no_alignment\nMKVLAYG\n"
        + fasta.read_text()
    )
    out = tmp_path / "out"
    result = predict(bad, "--alignments", ALIGNMENTS, "-w", checkpoint, "--out", out, code=2)
    rows = table(out)
    failed = {name for name, row in rows.items() if row["fate"] == "failed"}
    assert len(rows) == 6
    assert failed == {"long", "stop", "'../../evil'", "no_alignment"}
    assert "max_length" in rows["long"]["reason"]
    assert "--query-alone" in rows["no_alignment"]["reason"]
    assert {path.name for path in out.iterdir() if path.is_dir()} == rows.keys() - failed
    assert "2 of 6" in result.output


@pytest.mark.parametrize("content", ["", "\n", ">name\n", ">stop\nMKV*\n"])
def test_a_file_without_a_usable_sequence_leaves_no_tables(content, checkpoint, tmp_path):
    empty = tmp_path / "empty.fasta"
    empty.write_text(content)
    predict(empty, "--query-alone", "-w", checkpoint, "--out", tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()


def test_alphafolds_models_are_an_ensemble(fasta, write_alphafold, micro_overrides, tmp_path):
    override = tmp_path / "micro.yaml"
    presets = ["model_1_ptm", "model_3_ptm", "model_4_ptm"]
    words = [word for preset in presets for word in ("-w", write_alphafold(preset))]
    settings = [
        word
        for section, values in micro_overrides.items()
        for word in ("--set", f"{section}={json.dumps(values)}")
    ]
    override.write_text(yaml.safe_dump(micro_overrides))
    predict(fasta, "--alignments", ALIGNMENTS, *words, *settings, "--out", tmp_path / "all")
    found = record(tmp_path / "all/5pti_A")
    assert found["ranked_by"] == "ptm"
    scores = [model["ptm"] for model in found["models"]]
    assert scores == sorted(scores, reverse=True)
    assert {model["weights"]["label"] for model in found["models"]} == set(presets)
    # Each predicts what it does alone: weights are switched in the same buffers.
    for model in found["models"]:
        label = model["weights"]["label"]
        predict(
            fasta, "--alignments", ALIGNMENTS, "-w", write_alphafold(label), *settings,
            "--out", tmp_path / label,
        )  # fmt: skip
        (alone,) = record(tmp_path / label / "5pti_A")["models"]
        assert (alone["ptm"], alone["plddt"]) == (model["ptm"], model["plddt"])
    best = found["models"][0]
    (entry,) = json.loads((tmp_path / "all/5pti_A" / best["files"]["pae"]).read_text())
    errors = np.array(entry["predicted_aligned_error"])
    assert errors.shape == (58, 58)
    assert errors.dtype.kind == "i"
    assert 0 <= errors.min() <= errors.max() <= entry["max_predicted_aligned_error"] + 0.5


def test_early_stop_makes_fewer_passes(fasta, checkpoint, tmp_path):
    def passes(tolerance: float) -> int:
        out = tmp_path / str(tolerance)
        predict(
            fasta, "--query-alone", "-w", checkpoint, "--out", out, "--recycling", "4",
            "--early-stop", tolerance,
        )  # fmt: skip
        return record(out / "5pti_A")["models"][0]["passes"]

    assert passes(0) == 5
    assert passes(1000) == 3  # two to compare, and the last


def test_parts_are_all_sequences_and_what_fails_is_no_error(fasta, checkpoint, tmp_path):
    mixed = tmp_path / "mixed.fasta"
    mixed.write_text(fasta.read_text() + ">stop\nMKV*\n>short\nMKVLAY\n>long\n" + "MKVL" * 600)
    words = [mixed, "--query-alone", "-w", checkpoint, "--recycling", 0]
    parts = []
    for number in range(3):
        predict(*words, "--part", f"{number}/3", "--out", tmp_path / str(number))
        parts.append(table(tmp_path / str(number)))
    assert sorted(name for part in parts for name in part) == sorted(
        ["5pti_A", "1a8o_A", "stop", "short", "long"]
    )
    fates = {name: row["fate"] for part in parts for name, row in part.items()}
    assert {name for name, fate in fates.items() if fate == "failed"} == {"stop", "long"}


def test_options_that_contradict_are_refused(fasta, shards, checkpoint, tmp_path):
    rest = ["-w", checkpoint, "--out", tmp_path / "out"]
    for words in (
        [],
        [fasta],
        [fasta, "--shards", shards],
        [fasta, "--query-alone", "--alignments", ALIGNMENTS],
        [fasta, "--query-alone", "--chain", "5pti_A"],
        [fasta, "--alignments", fasta],
        [fasta, "--query-alone", "--preset", "tiny", "-c", "x.yaml"],
        [fasta, "--query-alone", "--preset", "tiny"],  # the checkpoint says its own
        ["--shards", shards, "--query-alone"],
        ["--shards", shards, "--part", "0/2"],
        [fasta, "--query-alone", "--part", "2/2"],
    ):
        predict(*words, *rest, code=2)
    assert not (tmp_path / "out").exists()


def test_chains_of_shards_by_name(shards, checkpoint, tmp_path):
    words = ["--shards", shards, "--chain", "5pti_A", "--chain", "9xyz_A"]
    predict(*words, "-w", checkpoint, "--out", tmp_path, code=2)
    fates = {name: row["fate"] for name, row in table(tmp_path).items()}
    assert fates == {"5pti_A": "predicted", "9xyz_A": "failed"}


def test_a_prediction_that_is_not_finite_is_listed(fasta, checkpoint, micro, tmp_path):
    state = example_state(micro)
    state["structure_module.bb_update.linear.bias"].fill_(3e38)
    torch.save(state, tmp_path / "wild.pt")
    config = tmp_path / "micro.yaml"
    config.write_text(yaml.safe_dump(micro.model_dump(mode="json")))
    words = [fasta, "--query-alone", "-w", tmp_path / "wild.pt", "-c", config]
    predict(*words, "--out", tmp_path / "out", code=2)
    assert all("not finite" in row["reason"] for row in table(tmp_path / "out").values())
