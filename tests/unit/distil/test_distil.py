"""From predictions to shards with both kinds of chains, and training on them."""

from __future__ import annotations

import csv
import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
import torch
from rich.console import Console
from tests.unit.distil.conftest import RARE
from typer.testing import CliRunner

from scalefold.checkpoint.read import load_weights
from scalefold.cli import app
from scalefold.config import Config, make_config
from scalefold.config.load import merge
from scalefold.config.schema import FeaturesConfig
from scalefold.distil.run import distil
from scalefold.errors import InputError
from scalefold.features.pipeline import training_features
from scalefold.loader.sampler import TrainingSampler
from scalefold.predict.targets import fasta_targets
from scalefold.raw.fasta import FastaRecord
from scalefold.shards.manifest import Manifest
from scalefold.shards.packed_settings import check_origin
from scalefold.shards.reader import ShardReader
from scalefold.shards.verify import verify
from scalefold.train.start import train

LIMITS = {"min_length": 50, "min_alignment_rows": 2, "min_mean_plddt": 60.0}
KEPT = ["1lcd", "4zey", "tr|X1|PAR3_A"]


@pytest.fixture
def run(
    micro_tree: dict[str, Any], shards: Path, alignments: Path, tmp_path: Path
) -> Callable[..., Path]:
    """Distil into a folder, with other limits if they are given."""

    def call(*folders: Path, out: str = "both", jobs: int = 1, **limits: float) -> Path:
        config = make_config(merge(micro_tree, {"distillation": LIMITS | limits}))
        quiet = Console(quiet=True)
        distil(
            folders, config, shards, tmp_path / out, alignments=alignments, jobs=jobs, console=quiet
        )
        return tmp_path / out

    return call


def table(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "distilled.tsv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}


def fates(folder: Path) -> dict[str, str]:
    return {name: row["fate"] for name, row in table(folder).items()}


def test_the_table_says_what_is_kept_and_why_the_rest_is_not(
    run: Any, predictions: Path, set_confidence: Any
) -> None:
    kept = dict.fromkeys(KEPT, "kept")
    absent = {"unaligned": "not predicted", "stop": "not predicted"}
    left_out = absent | {"5pti": "known", "rare": "alignment"}
    assert fates(run(predictions)) == kept | left_out
    row = table(run(predictions))["1lcd"]
    length = int(row["length"])
    assert int(row["confident_residues"]) == (length + 1) // 2
    assert float(row["mean_plddt"]) == pytest.approx(65.0, abs=0.5)
    assert int(row["alignment_rows"]) > 2
    # each limit is met by what is just at it
    assert fates(run(predictions, min_length=length))["1lcd"] == "kept"
    assert fates(run(predictions, min_length=length + 1))["1lcd"] == "length"
    assert fates(run(predictions, max_length=length))["1lcd"] == "kept"
    rows = int(table(run(predictions))["4zey"]["alignment_rows"])
    assert fates(run(predictions, min_alignment_rows=rows))["4zey"] == "kept"
    assert fates(run(predictions, min_alignment_rows=rows + 1))["4zey"] == "alignment"
    set_confidence(predictions, "1lcd", [59.0])
    assert fates(run(predictions))["1lcd"] == "confidence"
    set_confidence(predictions, "1lcd", [49.0])
    assert fates(run(predictions, min_mean_plddt=0.0))["1lcd"] == "confidence"
    (predictions / "4zey/prediction.json").write_text("{}")
    assert fates(run(predictions))["4zey"] == "structure"
    for name, problem in table(run(predictions)).items():
        assert bool(problem["reason"]) == (problem["fate"] != "kept"), name


def test_the_new_folder_has_both_kinds_and_is_sound(
    run: Any, predictions: Path, shards: Path, alignments: Path, micro: Config
) -> None:
    both = run(predictions)
    assert verify(both) == []
    check_origin(both, micro)
    reader, before = ShardReader(both), ShardReader(shards)
    added = sorted(f"distilled_{name}" for name in KEPT)
    assert reader.keys("train") == sorted([*before.keys("train"), *added])
    for key in before.keys(None):
        old, new = before.sample(key), reader.sample(key)
        np.testing.assert_array_equal(old.chain.positions, new.chain.positions)
        np.testing.assert_array_equal(old.msa.msa, new.msa.msa)
        assert [hit.chain_key for hit, _ in old.templates] == [
            hit.chain_key for hit, _ in new.templates
        ]
    for name in KEPT:
        sample = reader.sample(f"distilled_{name}")
        chain = sample.chain
        assert (chain.origin, chain.resolution, chain.release_date) == ("distilled", None, None)
        np.testing.assert_array_equal(chain.confidence, np.resize(np.float32([90, 40]), len(chain)))
        structure = gemmi.read_structure(str(next((predictions / name).glob("*.cif"))))
        atoms = [atom.pos.tolist() for residue in structure[0][0] for atom in residue]
        assert chain.atom_mask.sum() == len(atoms)
        ca = [residue.sole_atom("CA").pos.tolist() for residue in structure[0][0]]
        np.testing.assert_allclose(chain.positions[:, 1], ca, atol=1e-3)
        (target,) = fasta_targets([FastaRecord(name, chain.sequence)], alignments, micro.shards)
        expected = target.read().msa
        for field in dataclasses.fields(expected):
            np.testing.assert_array_equal(
                getattr(sample.msa, field.name), getattr(expected, field.name)
            )
        assert sample.templates == ()
        config = FeaturesConfig(crop_size=16, max_msa_clusters=4, max_extra_msa=4)
        (features,) = training_features(sample, config, 0, 0, [0])
        assert features["backbone_rigid_mask"].sum() == 8  # every second residue
    counts, others = Manifest.read(both).counts, Manifest.read(shards).counts
    assert counts["chains, train"] == others["chains, train"] + 3
    assert counts["chains, distilled"] == 3


def test_letters_of_rare_residues_are_those_of_alignments(run: Any, predictions: Path) -> None:
    both = run(predictions, min_alignment_rows=1)
    assert fates(both)["rare"] == "kept"
    assert verify(both) == []
    sample = ShardReader(both).sample("distilled_rare")
    assert sample.chain.sequence == RARE.replace("U", "C")
    np.testing.assert_array_equal(sample.msa.msa[0], sample.chain.aatype)


def test_the_result_does_not_depend_on_how_predictions_were_divided(
    run: Any, predicted: dict[str, Path], shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalefold.distil.run.BUCKET_SIZE", 2)
    one = run(predicted["all"], out="one", min_mean_plddt=0.0)
    two = run(predicted["second"], predicted["first"], out="two", jobs=2, min_mean_plddt=0.0)
    assert len(list(one.glob("chain-*.arrow"))) > 2
    assert (one / "manifest.json").read_bytes() == (two / "manifest.json").read_bytes()
    # a second call replaces the first, and shards that no manifest names are not taken
    monkeypatch.setattr("scalefold.distil.run.BUCKET_SIZE", 1)
    (shards / "chain-00002.arrow").write_bytes(b"of a former list of chains")
    try:
        run(predicted["all"], out="two", min_mean_plddt=0.0)
    finally:
        (shards / "chain-00002.arrow").unlink()
    assert verify(two) == []


def test_what_cannot_be_joined_is_refused(
    run: Any, predictions: Path, shards: Path, micro: Config, alignments: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="1lcd"):
        run(predictions, shutil.copytree(predictions, tmp_path / "again"))
    with pytest.raises(InputError, match="confidence: 4"):
        run(predictions, min_mean_plddt=99.0)
    both = run(predictions)
    with pytest.raises(InputError, match="predicted structures already"):
        distil([predictions], micro, both, tmp_path / "twice", alignments=alignments)
    with pytest.raises(InputError, match="experimental chains"):
        distil([predictions], micro, shards, shards, alignments=alignments)
    other = shutil.copytree(shards, tmp_path / "other")
    with pytest.raises(InputError, match="other shards"):
        distil([predictions], micro, shards, other, alignments=alignments)
    assert verify(other) == []


def test_the_command(
    predictions: Path, shards: Path, alignments: Path, micro_tree: dict[str, Any], tmp_path: Path
) -> None:
    config = tmp_path / "micro.json"
    config.write_text(make_config(merge(micro_tree, {"distillation": LIMITS})).model_dump_json())
    words = ["distil", predictions, "-c", config, "--shards", shards, "--out", tmp_path / "both"]
    missing = CliRunner().invoke(app, list(map(str, words)))
    assert missing.exit_code == 2
    result = CliRunner().invoke(app, [*map(str, words), "--alignments", str(alignments)])
    assert result.exit_code == 0, result.output
    assert "of 7 predictions, kept: 3" in result.output


def test_training_reads_both_kinds_and_resumes_exactly(
    run: Any, predictions: Path, micro_tree: dict[str, Any], tmp_path: Path
) -> None:
    both = run(predictions)
    tree = merge(micro_tree, {"sampling": {"distilled_share": 0.75}})

    def trained(out: Path, steps: int, *, resume: bool) -> Path:
        config = make_config(merge(tree, {"training": {"steps": steps}}))
        train(
            config, both, out,
            resume=resume, device=torch.device("cpu"), stop=threading.Event(),
        )  # fmt: skip
        return out / f"step-{steps:08d}"

    whole = trained(tmp_path / "whole", 4, resume=False)
    trained(tmp_path / "halves", 2, resume=False)
    halves = trained(tmp_path / "halves", 4, resume=True)
    one, other = load_weights(whole, "weights"), load_weights(halves, "weights")
    assert all(torch.equal(one[name], other[name]) for name in one)
    config = make_config(tree)
    sampler = TrainingSampler(ShardReader(both).index, config.sampling, config.seed)
    kinds = {sampler.key(draw).startswith("distilled_") for draw in range(8)}
    assert kinds == {True, False}
    start = load_weights(tmp_path / "whole/step-00000000", "weights")
    assert not all(torch.equal(one[name], start[name]) for name in one)
