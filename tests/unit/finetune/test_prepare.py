"""The list of chains and the configuration that a fine-tuning is made of."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.conftest import DEMO
from tests.unit.train.quietly import train_quietly

from scalefold.config import load_config, make_config
from scalefold.config.load import merge, preset_config, preset_model
from scalefold.errors import InputError
from scalefold.finetune.listing import list_chains
from scalefold.finetune.prepare import prepare
from scalefold.finetune.request import Request
from scalefold.finetune.settings import snakemake_command
from scalefold.finetune.weights import read_given_weights
from scalefold.raw.chains import read_chains
from scalefold.raw.rejected import read_rejected
from scalefold.weights import export_weights
from scalefold.weights.matching import model_shapes

ENTRIES = ("pt/5pti", "a8/1a8o", "lc/1lcd", "3z/3zee", "i6/4i6p")


@pytest.fixture(scope="module")
def checkpoint(
    micro_tree: dict[str, Any], shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("given")
    tree = merge(micro_tree, {"training": {"steps": 1, "max_recycling": 0}})
    return train_quietly(make_config(tree), shards, out).checkpoint


@pytest.fixture
def request_(checkpoint: Path, tmp_path: Path) -> Request:
    structures = tmp_path / "structures"
    structures.mkdir()
    for entry in ENTRIES:
        source = f"mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF/{entry}.cif.gz"
        target = structures / Path(source).name
        target.symlink_to(next(p for p in [DEMO / source, *DEMO.rglob(target.name)] if p.exists()))
    out = tmp_path / "results/my"
    return Request(structures, checkpoint, out, None, True, None, 1, "none", {"seed": 3})


def test_the_configuration_is_that_of_the_weights_and_the_preset(
    request_: Request, checkpoint: Path, micro_tree: dict[str, Any]
) -> None:
    prepared = prepare(request_, anew=False, jobs=1)
    assert prepared.unusable == []
    config = load_config([request_.settings])
    given = make_config(micro_tree)
    assert config.model == given.model
    assert config.features == given.features
    assert (config.preset, config.seed) == ("finetune-own", 3)
    assert config.results / config.run_name == request_.out
    assert config.training.initial_weights == checkpoint
    assert config.optimiser.learning_rate < 1e-4


def test_no_sequence_is_on_both_sides(request_: Request) -> None:
    structures = request_.structures
    shutil.copy(structures / "5pti.cif.gz", structures / "twin.cif.gz")  # the same entry: refused
    prepared = prepare(request_, anew=False, jobs=1)
    assert [one.chain_key for one in prepared.unusable] == ["twin.cif.gz"]
    rows = read_chains(request_.chains)
    sides = [{row.chain_key for row in rows if row.split == s} for s in ("train", "validation")]
    assert len(sides[1]) == 1
    assert not sides[0] & sides[1]
    assert {"5pti_A", "1a8o_A", "1lcd_A"} <= sides[0] | sides[1]


def test_a_list_that_has_none_to_train_on_names_what_was_left_out(request_: Request) -> None:
    for path in request_.structures.iterdir():
        if path.name != "5pti.cif.gz":
            path.unlink()
    (request_.structures / "cut.pdb").write_text("ATOM")
    with pytest.raises(InputError, match=r"(?s)--validation.*cut\.pdb"):
        prepare(request_, anew=False, jobs=1)
    assert [one.chain_key for one in read_rejected(request_.rejected)] == ["cut.pdb"]
    assert not request_.settings.exists()


@pytest.mark.parametrize(("clusters", "held_out", "warns"), [(19, 1, True), (20, 2, False)])
def test_few_clusters_are_said_before_it_starts(
    request_: Request, clusters: int, held_out: int, warns: bool
) -> None:
    letters = "ACDEFGHIKLMNPQRSTVWY"
    sequences = {f"9abc_{letter}": letter.join(letters) for letter in letters[:clusters]}
    sequences["9abc_a"] = sequences["9abc_A"]  # a copy is no other cluster
    request_.sequences.parent.mkdir(parents=True)
    listing = list_chains(dataclasses.replace(request_, validation=held_out), sequences, jobs=1)
    assert listing.num_clusters == clusters
    assert bool(listing.warnings) is warns
    none = dataclasses.replace(request_, validation=0)
    assert list_chains(none, sequences, jobs=1).warnings == []


def test_the_same_arguments_go_on_with_what_was_edited(request_: Request) -> None:
    first = prepare(request_, anew=False, jobs=1)
    edited = request_.settings.read_text().replace("seed: 3", "seed: 4")
    request_.settings.write_text(edited)
    assert prepare(request_, anew=False, jobs=1).unusable == first.unusable
    assert request_.settings.read_text() == edited
    other = dataclasses.replace(request_, overrides={})
    with pytest.raises(InputError, match=r"finetune\.yaml.*--anew"):
        prepare(other, anew=False, jobs=1)
    prepare(other, anew=True, jobs=1)
    assert load_config([request_.settings]).seed == 0


def test_the_file_says_the_command_that_runs_the_workflow(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_gpu in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        prepare(request_, anew=True, jobs=1)
        command = snakemake_command(request_.settings, "local")
        assert f"#   {shlex.join(command)}\n" in request_.settings.read_text()
        assert ("gpu=2" in command) is not has_gpu  # evaluations run beside training


def test_without_validation_the_training_chains_are_evaluated(request_: Request) -> None:
    prepare(dataclasses.replace(request_, validation=0), anew=False, jobs=1)
    assert {row.split for row in read_chains(request_.chains)} == {"train"}
    evaluation = load_config([request_.settings]).evaluation
    assert (evaluation.mode, evaluation.patience, evaluation.splits) == ("after", None, ["train"])


def test_a_module_that_the_model_lacks_is_refused(request_: Request) -> None:
    wrong = dataclasses.replace(request_, overrides={"training": {"trainable": ["decoder"]}})
    with pytest.raises(InputError, match=r"training\.trainable: .*'decoder'"):
        prepare(wrong, anew=False, jobs=1)
    assert not request_.settings.exists()


def test_wrong_settings_are_refused_before_anything_is_written(request_: Request) -> None:
    wrong = dataclasses.replace(request_, overrides={"training": {"step": 3}})
    with pytest.raises(InputError, match=r"training\.steps"):
        prepare(wrong, anew=False, jobs=1)
    assert not request_.out.exists()


def test_a_whole_run_as_further_settings_is_refused(request_: Request) -> None:
    whole = {"run_name": "other", "data": {"chains": "other.tsv"}, "training": {"steps": 3}}
    with pytest.raises(InputError, match=r"run_name, data\.chains"):
        prepare(dataclasses.replace(request_, overrides=whole), anew=False, jobs=1)
    assert not request_.out.exists()


@pytest.mark.parametrize("alignments", [None, "absent"])
def test_alignments_are_asked_for_before_structures_are_read(
    request_: Request, alignments: str | None
) -> None:
    given = None if alignments is None else request_.out / alignments
    wrong = dataclasses.replace(request_, alignments=given, query_alone=False)
    with pytest.raises(InputError, match="--alignments"):
        prepare(wrong, anew=False, jobs=1)
    assert not request_.mirror.exists()


@pytest.mark.parametrize(
    ("name", "preset", "templates", "pae"),
    [
        ("params_model_1.pt", "model_1", True, False),
        ("any.pt", "model_3_ptm", False, True),  # found out from the parameters
    ],
)
def test_the_model_of_a_file_is_found_out(
    name: str, preset: str, templates: bool, pae: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Models of full width have 93 million parameters: here only what tells them apart.
    small = {
        "c_m": 8, "c_z": 8, "c_s": 16, "c_e": 8, "c_plddt": 8,
        "evoformer": {"num_blocks": 1}, "extra_msa": {"num_blocks": 1},
    }  # fmt: skip
    monkeypatch.setattr(
        "scalefold.finetune.weights.preset_config",
        lambda name: preset_config(name, {"model": small}),
    )
    model = preset_model(preset, {"model": small})
    path = tmp_path / name
    import torch

    state = {key: torch.zeros(shape) for key, shape in model_shapes(model).items()}
    export_weights(state, model, path)
    found = read_given_weights(path)
    assert found.model == f"preset {preset}"
    assert found.num_parameters == sum(value.numel() for value in state.values())
    settings = found.settings
    assert settings.get("model", {}).get("template", {}).get("enabled", True) is templates
    assert settings.get("loss", {}) == ({"pae": 0.1} if pae else {})
    with pytest.raises(InputError, match="does not fit"):
        read_given_weights(path, "model_1_ptm" if not pae else "model_1")


def test_weights_in_a_checkpoint_are_of_its_model(checkpoint: Path) -> None:
    found = read_given_weights(checkpoint)
    for name in ("averaged.pt", "weights.pt"):
        assert read_given_weights(checkpoint / name) == found


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such weight file"):
        read_given_weights(tmp_path / "absent.npz")
    with pytest.raises(InputError, match="no checkpoint"):
        read_given_weights(tmp_path)
