"""What a run comes to, as `config check` says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.conftest import run

from scalefold.config import load_stages, make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.fetch.fetched import Kind
from scalefold.fetch.on_mirrors import can_be_evaluated, check_files, lacking_files
from scalefold.plan.run_summary import run_summary
from scalefold.raw.chains import ChainRow, read_chains

ROOT = Path(__file__).parents[3]
WEB = {"chains": "-", "mirrors": {"mmcif": ["https://m.org"], "alignments": ["https://m.org"]}}


def facts(settings: dict, chains: list[ChainRow]) -> dict[str, str]:
    config = make_config(merge({"data": WEB}, settings))
    return dict(line.split(": ", 1) for line in run_summary({"": config}, chains))


@pytest.mark.parametrize("preset", ["mlperf", "finetuning", "finetune-own"])
def test_hours_and_memory_are_those_of_the_plan_also_without_triton(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ops.kernels", "plan.rows"):
        monkeypatch.setattr(f"scalefold.{module}.triton_version", lambda: None)
    hours = facts({"preset": preset}, [ChainRow("1abc_A", "train", None)])["hours"]
    result = run("plan", "--gpus", "1", "--preset", preset, "--format", "json")
    (row,) = json.loads(result.stdout)["rows"]
    assert float(hours.split()[0]) == pytest.approx(row["gpu_hours"], abs=0.05)
    assert f"{row['recomputation']}, " in hours
    assert f" {row['memory_gib']:.0f} GiB" in hours


def test_a_training_of_the_measured_size() -> None:
    chains = [ChainRow(f"{n:04}_A", "train", None) for n in range(100)]
    found = facts({"preset": "mlperf"}, chains)
    assert "512,000 samples" in found["training"]
    assert "5,120 epochs of 100 chains" in found["training"]
    assert float(found["hours"].split()[0]) == pytest.approx(512_000 * 0.20048 / 3600, rel=0.01)
    assert found["checkpoints"].startswith("51 of 1.5 GB, 76.1 GB")  # 93,229,082 parameters
    own = facts({"preset": "finetune-own"}, chains)
    assert float(own["hours"].split()[0]) == pytest.approx(16_000 * 0.965 / 3600, rel=0.02)


def test_other_sizes_have_a_bound_and_larger_models_have_none() -> None:
    """Double the rows at double the length: triangles grow eightfold, rows of the MSA too."""

    def hours(**features: int) -> float:
        found = facts({"preset": "finetuning", "features": features}, chains)["hours"]
        assert found.startswith("at most about")
        return float(found.split()[3].replace(",", ""))

    chains = [ChainRow("1abc_A", "train", None)]
    longer = hours(crop_size=768)
    assert hours(crop_size=768, max_msa_clusters=1020) == longer  # 508 + 4 templates' rows
    assert longer == pytest.approx(8 / 4 * hours(max_msa_clusters=1020), rel=1e-3)
    tiny = facts({"preset": "tiny"}, chains)["hours"]
    assert tiny.startswith("less than 0.1 ")
    wide = facts({"preset": "finetuning", "model": {"c_z": 256}}, chains)["hours"]
    assert not any(word.replace(".", "").isdigit() for word in wide.split())


@pytest.mark.parametrize("model", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("head", ["", "_ptm"])
def test_fine_tuning_of_each_of_alphafolds_models_has_an_estimate(model: int, head: str) -> None:
    chains = [ChainRow("1abc_A", "train", None)]
    own = make_config({"preset": f"model_{model}{head}", "data": WEB})
    settings = own.model_dump(mode="json", include={"model", "features"})
    hours = facts({"preset": "finetune-own", **settings}, chains)["hours"]
    assert f"{16_000 * 0.965 / 3600:.1f}" in hours
    assert ("at most" in hours) == (model != 1 or bool(head))


def test_chains_that_lack_files_are_counted(tmp_path: Path) -> None:
    (config,) = load_stages([ROOT / "demo/config.yaml"]).values()
    mirrors = {root: [str(ROOT / "demo/mirror" / root)] for root in ("wwpdb", "openproteinset")}
    given = {"mmcif": mirrors["wwpdb"], "alignments": mirrors["openproteinset"]}
    data = config.data.model_copy(update={"mirrors": config.data.mirrors.model_copy(update=given)})
    chains = read_chains(ROOT / "demo/chains.tsv")
    strange = [ChainRow("9xyz_A", "train", None), ChainRow("5pti_Z", "validation", None)]
    template = ChainRow("5pti_Y", "template", None)  # needs no alignment
    listed = [*chains, *strange, template]
    assert lacking_files(listed, data, "structures") == strange[:1]
    assert lacking_files(listed, data, "alignments") == strange
    on_web = {"mirrors": data.mirrors.model_copy(update={"alignments": ["https://m.org"]})}
    data = data.model_copy(update=on_web)
    assert lacking_files(listed, data, "structures") == strange[:1]
    assert lacking_files(listed, data, "alignments") is None


def test_epochs_are_of_the_chains_that_are_used(tmp_path: Path) -> None:
    for key in ("5pti_A", "1a8o_A"):
        (tmp_path / f"{key[:4]}.cif").touch()
        (tmp_path / f"{key}_a.a3m").touch()
    mirrors = {"mmcif": [str(tmp_path)], "alignments": [str(tmp_path)]}
    paths = {"mmcif_path": "{entry}.cif", "alignment_path": "{chain}{name}.a3m"}
    settings = {"preset": "tiny", "data": {"alignments": ["_a"], "mirrors": mirrors | paths}}
    absent = [f"{number}xyz_A" for number in range(5)]
    (tmp_path / "1xyz.pdb.gz").touch()
    there = [ChainRow("5pti_A", "train", None), ChainRow("1a8o_A", "train", None)]
    missing = [ChainRow(key, "train", None) for key in absent]
    found = facts(settings, [*there, *missing])
    assert "epochs of 2 chains" in found["training"]
    for kind in ("structures", "alignments"):
        assert "5 train" in found[kind]
        assert "0xyz_A, 1xyz_A, 2xyz_A and 2 more" in found[kind]
    searched = facts(settings | {"search": {"query_alone": True}}, [*there, *missing])
    assert "epochs of 2 chains" in searched["training"]  # a search finds no structure
    assert str(tmp_path / "1xyz.cif") in found["formats"]
    assert "1xyz.pdb.gz" in found["formats"]
    assert "no chain is left" in facts(settings, [ChainRow("9xyz_A", "train", None)])["training"]


@pytest.mark.parametrize("only", [None, "structures", "alignments"])
def test_no_training_chain_with_files_is_an_error(tmp_path: Path, only: Kind | None) -> None:
    """Each kind of file is there, but no training chain has all that it needs."""
    names = {None: ("1aaa", "2bbb"), "structures": ("3ccc",), "alignments": ("3ccc",)}
    train = [ChainRow(f"{entry}_A", "train", None) for entry in names[only]]
    held_out = ChainRow("4ddd_A", "validation", None)
    for name in ("1aaa.cif", "2bbb_A_a.a3m", "4ddd.cif", "4ddd_A_a.a3m"):
        (tmp_path / name).touch()
    mirrors = {"mmcif": [str(tmp_path)], "alignments": [str(tmp_path)]}
    paths = {"mmcif_path": "{entry}.cif", "alignment_path": "{chain}{name}.a3m"}
    given = {"chains": "-", "alignments": ["_a"], "template_hits": None}
    data = make_config({"data": given | {"mirrors": mirrors | paths}}).data
    with pytest.raises(InputError, match=rf"\b{len(train)}\b"):
        check_files([*train, held_out], data, only)
    check_files([held_out], data, only)  # the list may be for an evaluation
    assert can_be_evaluated([*train, held_out], data, ["validation"], only)
    assert not can_be_evaluated([*train, held_out], data, ["train"], only)
    assert not can_be_evaluated(train, data, ["validation"], only)
    (tmp_path / f"{train[0].entry_id}.cif").touch()
    (tmp_path / f"{train[0].chain_key}_a.a3m").touch()
    check_files([*train, held_out], data, only)


def test_a_kind_of_file_that_is_fetched_already_needs_no_mirror(tmp_path: Path) -> None:
    mirror, raw = tmp_path / "mirror", tmp_path / "raw"
    mirror.mkdir()
    (mirror / "5pti.cif").touch()
    mirrors = {"mmcif": [str(mirror)], "alignments": [str(mirror)], "mmcif_path": "{entry}.cif"}
    given = {"chains": "-", "alignments": ["_a"], "template_hits": None, "mirrors": mirrors}
    data = make_config({"data": given}).data
    chains = [ChainRow("5pti_A", "train", None)]
    with pytest.raises(InputError, match=r"_a\.a3m"):
        check_files(chains, data, raw=raw)
    fetched = raw / "alignments/5pti_A/a3m/_a.a3m"
    fetched.parent.mkdir(parents=True)
    fetched.touch()
    check_files(chains, data, raw=raw)


def test_structures_that_are_there_in_another_format_only_are_named(tmp_path: Path) -> None:
    (tmp_path / "5pti.pdb").touch()
    mirrors = {"mmcif": [str(tmp_path)], "alignments": [str(tmp_path)], "mmcif_path": "{entry}.cif"}
    data = make_config({"data": {"chains": "-", "mirrors": mirrors}}).data
    chains = [ChainRow("5pti_A", "train", None)]
    with pytest.raises(InputError, match=r"5pti\.cif.*5pti\.pdb"):
        check_files(chains, data, "structures")
    (tmp_path / "1abc.cif").touch()
    chains.append(ChainRow("1abc_A", "validation", None))
    with pytest.raises(InputError, match=r"5pti\.cif is.*5pti\.pdb"):
        check_files(chains, data, "structures")


def test_wrong_names_of_chains_are_not_blamed_on_paths(tmp_path: Path) -> None:
    (tmp_path / "5pti.cif.gz").touch()
    (tmp_path / "5pti_A").mkdir()
    mirrors = {"mmcif": [str(tmp_path)], "alignments": [str(tmp_path)]}
    paths = {"mmcif_path": "{entry}.cif.gz", "alignment_path": "{chain}/{name}.a3m"}
    given = {"chains": "my.tsv", "template_hits": None, "mirrors": mirrors | paths}
    data = make_config({"data": given}).data
    for key, looked_for in (("5pti_X", "5pti_X/"), ("9pti_A", "9pti.cif.gz")):
        with pytest.raises(InputError, match=rf"^my\.tsv: .*\n.*{looked_for}"):
            check_files([ChainRow(key, "train", None)], data)
    with pytest.raises(InputError, match=r"^(?!my\.tsv)"):
        check_files([ChainRow("5pti_A", "train", None)], data)


def test_what_is_there_under_another_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "5pti.cif.gz").touch()
    (tmp_path / "5pti_A").mkdir()
    (tmp_path / "5pti_A/own_hits.a3m").touch()
    mirrors = {"mmcif": [str(tmp_path)], "alignments": [str(tmp_path)]}
    paths = {"mmcif_path": "{entry}.cif.gz", "alignment_path": "{chain}/{name}.a3m"}
    data = make_config({"data": {"chains": "-", "mirrors": mirrors | paths}}).data
    with pytest.raises(InputError, match=r"5pti_A/uniref90_hits\.a3m.*own_hits\.a3m"):
        check_files([ChainRow("5pti_A", "train", None)], data)
