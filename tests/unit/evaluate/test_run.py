"""Evaluation of a checkpoint, from bundled raw files through shards to the result file."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

import gemmi
import pytest
import torch
from rich.console import Console
from tests.example import set_example_weights

from scalefold.checkpoint.read import load_weights
from scalefold.checkpoint.write import save
from scalefold.config import Config, config_hash, make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.evaluate.chain_scores import METRICS
from scalefold.evaluate.chains import evaluate_chains
from scalefold.evaluate.run import evaluate_weights
from scalefold.features.contract import Features
from scalefold.features.pipeline import prediction_features
from scalefold.features.query import Query
from scalefold.fetch.run import fetch
from scalefold.model import AlphaFold, Previous
from scalefold.model.confidence import plddt
from scalefold.predict.predictor import Prediction
from scalefold.progress import LiveLine
from scalefold.raw.chains import read_chains
from scalefold.shards.manifest import data_hash
from scalefold.shards.pack import pack
from scalefold.shards.reader import ShardReader
from scalefold.weights import export_weights

DEMO = Path(__file__).parents[3] / "demo"
CHAINS = """chain_key\tsplit\tcluster_id
5pti_A\ttrain\t1
1lcd_A\ttrain\t2
3u8v_A\tvalidation\t3
3jqh_A\tvalidation\t4
"""
SETTINGS = {
    "preset": "tiny",
    "data": {
        "alignments": ["swissprot_hits"],
        "buckets": 1,
        "mirrors": {
            "mmcif": [str(DEMO / "mirror/wwpdb")],
            "alignments": [str(DEMO / "mirror/openproteinset")],
        },
    },
    "evaluation": {"splits": ["train", "validation"], "recycling": 1, "max_length": 150},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluate")


@pytest.fixture(scope="module")
def settings(folder: Path) -> Callable[..., Config]:
    table = folder / "chains.tsv"
    table.write_text(CHAINS)

    def make(**changes: object) -> Config:
        return make_config(merge(merge(SETTINGS, {"data": {"chains": str(table)}}), changes))

    return make


@pytest.fixture(scope="module")
def shards(folder: Path, settings: Callable[..., Config]) -> Path:
    config = settings()
    fetch(read_chains(config.data.chains), config.data, folder / "raw")
    pack(config, folder / "raw", folder / "shards", console=Console(quiet=True))
    return folder / "shards"


def save_checkpoint(config: Config, shards: Path, out: Path, poison: str | None = None) -> Path:
    model = AlphaFold(config.model)
    set_example_weights(model)
    averaged = {name: value.clone() for name, value in model.state_dict().items()}
    if poison is not None:
        averaged[poison].view(-1)[0] = math.nan
    # Only the averaged weights may be used.
    weights = {name: torch.full_like(value, math.nan) for name, value in averaged.items()}
    return save(
        out,
        step=7,
        weights=weights,
        averaged=averaged,
        training={},
        description={
            "config": config.model_dump(mode="json"),
            "config_hash": config_hash(config),
            "data_manifest_sha256": data_hash(shards),
            "scalefold_version": "0",
            "commit": None,
        },
    )


@pytest.fixture(scope="module")
def checkpoint(folder: Path, shards: Path, settings: Callable[..., Config]) -> Path:
    return save_checkpoint(settings(), shards, folder / "weights")


@pytest.fixture(scope="module")
def evaluated(
    folder: Path, shards: Path, checkpoint: Path, settings: Callable[..., Config]
) -> dict:
    out = folder / "evaluation" / "step-00000007.json"
    evaluate_weights(settings(), checkpoint, shards, out, structures=folder / "structures")
    return json.loads(out.read_text("utf-8"))


def test_short_chains_come_first_and_results_as_they_were_asked_for(
    shards: Path, settings: Callable[..., Config]
) -> None:
    lengths = []

    def predict(passes: Sequence[Features]) -> Prediction:
        lengths.append(passes[-1]["aatype"].shape[1])
        raise InputError("not now")

    chains = [("3u8v_A", "validation", 93), ("1lcd_A", "train", 51), ("5pti_A", "train", 58)]
    line = LiveLine("", len(chains), Console(quiet=True))
    found, _ = evaluate_chains(
        predict, ShardReader(shards), chains, settings(), torch.device("cpu"), None, line
    )
    assert lengths == [51, 58, 93]
    assert [chain["chain_key"] for chain in found["failed"]] == ["3u8v_A", "1lcd_A", "5pti_A"]


def test_every_chain_is_scored_or_listed_as_skipped(evaluated):
    assert evaluated["step"] == 7
    assert evaluated["weights"] == "averaged"
    assert evaluated["recycling"] == 1
    assert [c["chain_key"] for c in evaluated["chains"]] == ["1lcd_A", "5pti_A", "3u8v_A"]
    (skipped,) = evaluated["skipped"]
    assert skipped["chain_key"] == "3jqh_A"
    assert skipped["reason"] == "167 residues, more than evaluation.max_length (150)"
    assert evaluated["failed"] == []
    assert evaluated["counts"] == {
        "train": {"scored": 2, "skipped": 0, "failed": 0},
        "validation": {"scored": 1, "skipped": 1, "failed": 0},
    }


def test_a_folder_as_result_is_refused_before_the_work(
    folder: Path, shards: Path, checkpoint: Path, settings: Callable[..., Config]
) -> None:
    with pytest.raises(InputError, match="is a folder"):
        evaluate_weights(settings(), checkpoint, shards, folder)
    with pytest.raises(InputError, match=r"one\.tsv"):
        evaluate_weights(settings(), checkpoint, shards, folder / "one.tsv")


def test_scores_and_per_residue_arrays(evaluated):
    for chain in evaluated["chains"]:
        for metric in METRICS:
            assert chain[metric] is not None
        for metric in ("lddt_ca", "lddt_all_atom", "gdt_ts", "tm_score"):
            assert 0 <= chain[metric] <= 1
        assert 0 <= chain["mean_plddt"] <= 100
        assert chain["rmsd_ca_angstrom"] > 1  # random weights
        residues = chain["per_residue"]
        assert len(residues["lddt_ca"]) == len(residues["plddt"]) == chain["length"]
        assert None not in residues["plddt"]
        assert sum(value is not None for value in residues["lddt_ca"]) == chain["observed"]
    by_key = {chain["chain_key"]: chain for chain in evaluated["chains"]}
    assert (by_key["3u8v_A"]["length"], by_key["3u8v_A"]["observed"]) == (93, 83)


def test_facts_of_the_data_and_structures_for_the_report(shards, evaluated):
    reader = ShardReader(shards)
    for chain in evaluated["chains"]:
        sample = reader.sample(chain["chain_key"])
        assert chain["alignment_rows"] == sample.msa.num_seq_full
        assert chain["release_date"] == (
            sample.chain.release_date and str(sample.chain.release_date)
        )
        assert chain["peptide_bonds"] == chain["length"] - 1
        assert "ptm" not in chain
    shown = {(one["chain_key"], one["split"]): one for one in evaluated["shown"]}
    assert shown.keys() == {("1lcd_A", "train"), ("5pti_A", "train"), ("3u8v_A", "validation")}
    for (key, _), one in shown.items():
        (chain,) = [chain for chain in evaluated["chains"] if chain["chain_key"] == key]
        assert len(one["sequence"]) == chain["length"]
        assert set(one["maps"]) == {"distance", "true_distance"}


def test_a_model_with_the_head_tells_ptm_and_aligned_errors(shards, settings, tmp_path):
    config = settings(model={"pae_head": True})
    checkpoint = save_checkpoint(config, shards, tmp_path / "weights")
    found = evaluate_weights(config, checkpoint, shards, tmp_path / "e.json", splits=["validation"])
    (chain,) = found["chains"]
    assert 0 < chain["ptm"] <= 1
    pairs = chain["observed"] ** 2  # backbones are complete where there is a C-alpha
    assert sum(row[0] for row in chain["pae_bins"]) == pairs
    (one,) = found["shown"]
    assert set(one["maps"]) == {"distance", "true_distance", "pae", "true_pae"}


def test_means_are_over_the_chains_of_a_split(evaluated):
    values = [c["lddt_ca"] for c in evaluated["chains"] if c["split"] == "train"]
    assert evaluated["mean"]["train"]["lddt_ca"] == pytest.approx(sum(values) / 2, abs=1e-6)
    assert evaluated["mean"]["validation"]["gdt_ts"] == evaluated["chains"][2]["gdt_ts"]


def test_table_beside_the_json(folder, evaluated):
    lines = (folder / "evaluation" / "step-00000007.tsv").read_text("utf-8").splitlines()
    header, *rows = [line.split("\t") for line in lines]
    assert header == ["chain_key", "split", "length", "observed", *METRICS]
    assert [row[0] for row in rows] == ["1lcd_A", "5pti_A", "3u8v_A"]
    assert float(rows[1][header.index("lddt_ca")]) == evaluated["chains"][1]["lddt_ca"]


def test_structures_hold_the_prediction_and_its_plddt(folder, evaluated):
    structure = gemmi.read_structure(str(folder / "structures" / "5pti_A.cif"))
    chain = structure[0]["A"]
    assert gemmi.one_letter_code([r.name for r in chain]) == (
        "RPDFCLEPPYTGPCKARIIRYFYNAKAGLCQTFVYGGCRAKRNNFKSAEDCMRTCGGA"
    )
    expected = evaluated["chains"][1]["per_residue"]["plddt"]
    assert [residue[0].b_iso for residue in chain] == pytest.approx(expected, abs=0.01)
    assert all(atom.element.name == atom.name[0] for residue in chain for atom in residue)


def test_again_gives_the_same_bytes_and_nothing_of_the_machine(
    folder, shards, checkpoint, settings, evaluated, tmp_path
):
    again = tmp_path / "other" / "step-00000007.json"
    torch.rand(3)  # the process's random state must not matter
    evaluate_weights(settings(), checkpoint, shards, again)
    content = again.read_bytes()
    assert content == (folder / "evaluation" / "step-00000007.json").read_bytes()
    assert str(folder).encode() not in content


def test_a_chain_does_not_depend_on_which_others_are_evaluated(
    shards, checkpoint, settings, evaluated, tmp_path
):
    alone = evaluate_weights(
        settings(), checkpoint, shards, tmp_path / "e.json", splits=["validation"]
    )
    assert alone["chains"] == evaluated["chains"][2:]
    assert list(alone["mean"]) == ["validation"]


@pytest.mark.parametrize("of", ["checkpoint", "export", "other code"])
def test_a_weight_file_scores_as_the_checkpoint_that_it_is_of(
    of, shards, checkpoint, settings, evaluated, tmp_path
):
    model, averaged = settings().model, checkpoint / "averaged.pt"
    file = averaged if of == "checkpoint" else tmp_path / "model.pt"
    state = load_weights(checkpoint, "averaged")
    if of == "export":
        export_weights(state, model, file)
    elif of == "other code":
        named = {f"module.model.{name}": value for name, value in state.items()}
        torch.save({"ema": {"params": named}}, file)
    # A target is reached by a training, and here is none: nobody is told.
    config = settings(evaluation={"mode": "async", "target_lddt": 0.0001})
    before = set(file.parent.iterdir())
    result = evaluate_weights(config, file, shards, tmp_path / "e/e.json", splits=["validation"])
    assert result["chains"] == evaluated["chains"][2:]
    assert (result["step"], result["checkpoint"], result["weights"]) == (0, file.name, "file")
    assert result["weights_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert set(file.parent.iterdir()) - before <= {tmp_path / "e"}


def test_a_weight_file_of_another_model(shards, checkpoint, settings, tmp_path):
    other = settings(model={"c_m": 48})
    with pytest.raises(InputError, match=r"averaged\.pt"):
        evaluate_weights(other, checkpoint / "averaged.pt", shards, tmp_path / "e.json")
    with pytest.raises(InputError, match=r"checkpoint\.json"):
        evaluate_weights(settings(), checkpoint / "checkpoint.json", shards, tmp_path / "e.json")
    with pytest.raises(InputError, match=r"no\.pt"):
        evaluate_weights(settings(), tmp_path / "no.pt", shards, tmp_path / "e.json")


def test_agrees_with_the_model_run_by_hand(shards, checkpoint, settings, evaluated):
    config = settings()
    model = AlphaFold(config.model)
    set_example_weights(model)
    model.eval()
    passes = prediction_features(
        Query.of(ShardReader(shards).sample("1lcd_A")), config.features, 0, 2
    )
    with torch.no_grad():
        previous = Previous.zeros(1, 51, config.model, like=next(model.parameters()))
        for features in passes:  # templates again for each
            templates = model.embed_templates(features)
            outputs, previous = model(features, previous, templates)
    confidence = plddt(outputs.plddt_logits)[0].double()
    torch.testing.assert_close(
        confidence,
        torch.tensor(evaluated["chains"][0]["per_residue"]["plddt"], dtype=torch.float64),
        atol=1e-3,
        rtol=0,
    )


def test_progress_in_a_log_names_every_chain(shards, checkpoint, settings, tmp_path, caplog):
    caplog.set_level("INFO", logger="scalefold")
    evaluate_weights(
        settings(),
        checkpoint,
        shards,
        tmp_path / "e.json",
        splits=["train"],
        console=Console(file=StringIO()),
    )
    assert "evaluating step-00000007: 1/2  1lcd_A: lDDT-Cα 0." in caplog.text


def test_checkpoint_of_another_model(shards, checkpoint, settings, tmp_path):
    other = settings(model={"c_m": 48, "evoformer": {"num_blocks": 3}})
    with pytest.raises(InputError, match=r"model\.c_m: 32 .*48") as e:
        evaluate_weights(other, checkpoint, shards, tmp_path / "e.json")
    _, first, second, fix = str(e.value).splitlines()
    assert (first[:2], second[:2]) == ("  ", "  ")
    assert "model.evoformer.num_blocks: 2 in the checkpoint" in second
    assert fix.startswith("Use the configuration")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_named(shards, settings, tmp_path):
    name = "aux_heads.plddt.linear_3.weight"
    bad = save_checkpoint(settings(), shards, tmp_path / "w", poison=name)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        evaluate_weights(settings(), bad, shards, tmp_path / "e.json")


def test_a_prediction_that_is_not_finite_is_recorded_and_the_rest_goes_on(
    shards, checkpoint, settings, tmp_path, monkeypatch
):
    forward = AlphaFold.forward

    def broken(self, features, previous, templates):
        outputs, after = forward(self, features, previous, templates)
        if outputs.positions.shape[1] == 58:
            outputs = outputs._replace(positions=outputs.positions * math.inf)
        return outputs, after

    monkeypatch.setattr(AlphaFold, "forward", broken)
    result = evaluate_weights(settings(), checkpoint, shards, tmp_path / "e.json", splits=["train"])
    assert [chain["chain_key"] for chain in result["chains"]] == ["1lcd_A"]
    (failed,) = result["failed"]
    assert failed["chain_key"] == "5pti_A"
    assert failed["reason"] == "the predicted positions are not finite"
    assert result["mean"]["train"]["lddt_ca"] == result["chains"][0]["lddt_ca"]


def test_a_chain_too_long_for_the_device_is_recorded_and_the_rest_goes_on(
    shards, checkpoint, settings, evaluated, tmp_path, monkeypatch
):
    forward = AlphaFold.forward

    def exhausting(self, features, previous, templates):
        if features["aatype"].shape[1] == 51:  # the first, so that others come after it
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, features, previous, templates)

    monkeypatch.setattr(AlphaFold, "forward", exhausting)
    result = evaluate_weights(settings(), checkpoint, shards, tmp_path / "e.json", splits=["train"])
    assert result["chains"] == evaluated["chains"][1:2]
    (failed,) = result["failed"]
    assert failed["chain_key"] == "1lcd_A"
    assert failed["reason"].startswith("51 residues need more memory than CPU has; use a larger")


def test_a_damaged_row_is_recorded_and_the_rest_goes_on(
    shards, checkpoint, settings, evaluated, tmp_path
):
    damaged = tmp_path / "shards"
    shutil.copytree(shards, damaged)
    sample = ShardReader(shards).sample("5pti_A")
    (path,) = damaged.glob("chain-*.arrow")
    content = bytearray(path.read_bytes())
    offset = content.find(sample.chain.positions[sample.chain.atom_mask].tobytes())
    content[offset + 100] ^= 1
    path.write_bytes(content)
    result = evaluate_weights(
        settings(), checkpoint, damaged, tmp_path / "e.json", splits=["train"]
    )
    assert result["chains"] == evaluated["chains"][:1]
    assert "5pti_A" in result["failed"][0]["reason"]


def test_nothing_scored_is_an_error_and_writes_nothing(shards, checkpoint, settings, tmp_path):
    short = settings(evaluation={"max_length": 20})
    with pytest.raises(InputError, match="max_length"):
        evaluate_weights(short, checkpoint, shards, tmp_path / "e.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["out", "structures"])
def test_outputs_are_checked_before_the_work(
    shards, checkpoint, settings, tmp_path, monkeypatch, option
):
    (tmp_path / "file").write_text("in the way")
    paths = {"out": tmp_path / "e.json", option: tmp_path / "file" / "below" / "e"}
    monkeypatch.setattr("scalefold.evaluate.run.evaluate_chains", None)
    with pytest.raises(InputError, match="below"):
        evaluate_weights(settings(), checkpoint, shards, **paths)


@pytest.mark.parametrize("option", ["out", "structures"])
def test_a_folder_that_takes_no_files_is_refused_before_the_work(
    shards, checkpoint, settings, tmp_path, monkeypatch, option
):
    closed = Path("/proc/self")  # there, and refuses new files even to root
    paths = {
        "out": tmp_path / "results" / "e.json",
        option: closed if option == "structures" else closed / "e.json",
    }
    monkeypatch.setattr("scalefold.evaluate.run.evaluate_chains", None)
    with pytest.raises(InputError, match=str(closed)):
        evaluate_weights(settings(), checkpoint, shards, **paths)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_training_that_could_not_be_told_of_its_target_is_noticed_before_the_work(
    shards, checkpoint, settings, tmp_path, monkeypatch
):
    def refuse(folder, key):
        if folder == checkpoint.parent:
            raise InputError(f"{key}: {folder} cannot be written")

    monkeypatch.setattr("scalefold.evaluate.run.check_writable", refuse)
    out = tmp_path / "e.json"
    evaluate_weights(settings(), checkpoint, shards, out, splits=["train"])
    monkeypatch.setattr("scalefold.evaluate.run.evaluate_chains", None)
    targeted = settings(evaluation={"mode": "async", "target_lddt": 0.8})
    with pytest.raises(InputError, match=r"evaluation\.target_lddt"):
        evaluate_weights(targeted, checkpoint, shards, out)


def test_structures_that_would_be_one_file_are_refused_before_the_work(
    shards, checkpoint, settings, tmp_path, monkeypatch
):
    pair = [("1lcd_A", "train", 51), ("1lcd_a", "train", 51)]
    monkeypatch.setattr("scalefold.evaluate.run._chains", lambda *_: pair)
    monkeypatch.setattr("scalefold.evaluate.run.evaluate_chains", None)
    monkeypatch.setattr("scalefold.io.case_collisions._is_blind_to_case", lambda folder: True)
    with pytest.raises(InputError, match=r"1lcd_A\.cif .*1lcd_a\.cif"):
        evaluate_weights(settings(), checkpoint, shards, tmp_path / "e.json", structures=tmp_path)


def test_unknown_split(shards, checkpoint, settings, tmp_path):
    with pytest.raises(InputError, match="train, validation"):
        evaluate_weights(settings(), checkpoint, shards, tmp_path / "e.json", ["template"])
