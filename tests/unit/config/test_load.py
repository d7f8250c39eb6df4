from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from scalefold.config import (
    Config,
    config_hash,
    config_to_yaml,
    load_config,
    make_config,
    preset_model,
    preset_names,
)
from scalefold.errors import InputError

DATA: dict[str, Any] = {"chains": "chains.tsv", "mirrors": {"mmcif": ["m"], "alignments": ["a"]}}


def tree(**sections: Any) -> dict[str, Any]:
    return {"data": DATA, **sections}


def written(path: Path, **sections: Any) -> Path:
    path.write_text(yaml.safe_dump(sections))
    return path


def test_later_files_override_key_by_key(tmp_path: Path) -> None:
    first = written(
        tmp_path / "a.yaml", data=DATA, training={"steps": 5, "log_every": 3}, preset="tiny"
    )
    second = written(tmp_path / "b.yaml", training={"steps": 7})
    config = load_config([first, second], {"training": {"prefetch": 2}})
    assert (config.training.steps, config.training.log_every, config.training.prefetch) == (7, 3, 2)


def test_what_is_set_overrides_the_preset_that_overrides_the_defaults() -> None:
    config = make_config(tree(preset="mlperf", optimiser={"clip_norm": 0.2}))
    assert config.optimiser.clip_norm == 0.2
    assert config.optimiser.averaging == "swa"
    assert config.optimiser.beta2 == 0.999


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str) -> None:
    config = make_config(tree(preset=name))
    assert config.preset == name
    assert preset_model(name) == config.model
    assert (config.loss.pae > 0) == name.endswith("_ptm")


def test_training_settings_of_the_presets_are_those_of_their_sources() -> None:
    """Jumper et al. 2021, Suppl. 1.2, 1.11 and Tables 4, 5; MLPerf HPC v3.0 rules for OpenFold."""

    def settings(preset: str) -> tuple[Any, ...]:
        c = make_config(tree(preset=preset))
        o, f = c.optimiser, c.features
        assert (o.beta1, o.beta2, o.eps, o.clip_norm) == (0.9, 0.999, 1e-6, 0.1)
        assert (f.masked_msa.replace_fraction, f.clamp_fape_probability) == (0.15, 0.9)
        assert (f.max_templates, f.template_pool, c.training.max_recycling) == (4, 20, 3)
        return (
            (o.learning_rate, o.warmup_steps, o.clip_scope, o.averaging, o.averaging_decay),
            (f.crop_size, f.max_msa_clusters, f.max_extra_msa, f.block_deletion.enabled),
        )

    def rows(preset: str) -> tuple[bool, int, int]:
        c = make_config(tree(preset=preset))
        return (
            c.model.template.enabled, c.features.max_msa_clusters, c.features.max_extra_msa
        )  # fmt: skip

    presets = ("initial_training", "finetuning", "mlperf")
    assert [make_config(tree(preset=p)).training.steps for p in presets] == [78_000, 12_000, 2000]
    af2 = (1e-3, 1000, "sample", "ema", 0.999)
    assert settings("initial_training") == (af2, (256, 124, 1024, True))
    assert settings("finetuning") == ((5e-4, 0, *af2[2:]), (384, 508, 5120, True))
    assert settings("mlperf") == ((1e-3, 0, "global", "swa", 0.9), (256, 124, 1024, False))
    deletion = make_config(tree(preset="initial_training")).features.block_deletion
    assert (deletion.num_blocks, deletion.fraction_per_block) == (5, 0.3)
    models = [rows(f"model_{number}") for number in range(1, 6)]
    assert models[:2] == [(True, 508, 5120), (True, 508, 1024)]
    assert models[2:] == [(False, 512, 5120), (False, 512, 5120), (False, 512, 1024)]
    assert [rows(f"model_{number}_ptm") for number in range(1, 6)] == models


def test_yaml_of_a_configuration_gives_the_same_configuration() -> None:
    config = make_config(tree(preset="model_3_ptm", training={"initial_weights": "w.pt"}))
    assert make_config(yaml.safe_load(config_to_yaml(config))) == config


def test_hash_follows_the_content_and_not_how_it_was_stated() -> None:
    config = make_config(tree())
    stated = make_config(tree(training={"steps": config.training.steps}))
    other = make_config(tree(training={"steps": config.training.steps + 1}))
    assert config_hash(config) == config_hash(stated) != config_hash(other)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trainig": {"steps": 1}}, "'trainig'.*'training'"),
        ({"training": {"step": 1}}, "'training.step'.*'training.steps'"),
        (
            {"model": {"template": {"num_block": 1}}},
            "'model.template.num_block'.*'model.template.num_blocks'",
        ),
        (
            {"data": DATA | {"mmcif_path": "{entry}.cif.gz"}},
            "'data.mmcif_path'.*'data.mirrors.mmcif_path'",
        ),
        ({"steps": 5}, "'steps'.*'training.steps'"),
        (
            {"features": {"alignments": []}},
            "'data.mirrors.alignments' or 'data.alignments'",
        ),
        ({"data": DATA | {"xyz": 1}}, "'data.xyz'.*alignments, "),
        ({"training": {"steps": 0}}, "training.steps: .*1"),
        (
            {"features": {"max_templates": 0}},
            "features.max_templates: .*model.template.enabled.*data.template_hits",
        ),
        ({"training": {"steps": "many"}}, "training.steps: .*found 'many'"),
        ({"training": {"precision": "fp8"}}, "training.precision: .*'fp32', 'tf32' or 'bf16'"),
        ({"preset": "tinny"}, "preset: 'tinny' .*'tiny'"),
        ({"preset": None}, "preset: .*initial_training, .*None"),
        ({"preset": ["tiny"]}, r"preset: .*\['tiny'\]"),
        ({"loss": {"pae": 0.1}}, "model.pae_head .*loss.pae"),
        ({"features": {"masked_msa": {"same": 0.9}}}, "uniform .*1.1"),
        ({"optimiser": {"beta1": 1.0}}, "optimiser.beta1: .*1"),
        (
            {"model": {"evoformer": {"msa_dropout": 1.0}}},
            "model.evoformer.msa_dropout: .*1",
        ),
        (
            {"model": {"max_pae_angstrom": 62.0}},
            "model.max_pae_angstrom: .*31",
        ),
        (
            {"model": {"template": {"min_distance_angstrom": 60.0}}},
            "model.template.min_distance_angstrom .*60.0, .*max_distance_angstrom .*50.75",
        ),
        (
            {"loss": {"min_resolution_angstrom": float("nan")}},
            "loss.min_resolution_angstrom: .*nan",
        ),
        ({"run_name": "../up"}, "run_name: .*'../up'"),
        ({"run_name": "mine\n"}, "run_name: "),
        (
            {"evaluation": {"splits": "validation"}},
            r"splits: .*'validation'.*\[validation\]",
        ),
        (
            {"data": DATA | {"mirrors": {"mmcif": ["ftp://x.org"], "alignments": ["."]}}},
            "data.mirrors.mmcif: .*'ftp://x.org'",
        ),
        (
            {"data": DATA | {"mirrors": {"mmcif": ["https:/x.org"], "alignments": ["."]}}},
            "data.mirrors.mmcif: .*'https:/x.org'",
        ),
        (
            {"data": DATA | {"mirrors": {"mmcif": ["~/pdb"], "alignments": ["."]}}},
            "data.mirrors.mmcif: .*'~/pdb'",
        ),
        ({"data": DATA | {"chains": "$HOME/chains.tsv"}}, "data.chains: "),
        ({"training": {"initial_weights": "~/a.pt"}}, "initial_weights: "),
        ({"results": "~/results"}, "results: .*~"),
        ({"results": "a{b}"}, "results: .*brace"),
        (
            {
                "data": DATA
                | {
                    "alignments": ["uniref90_hits", "mgnify_hits"],
                    "mirrors": {
                        "mmcif": ["."],
                        "alignments": ["."],
                        "alignment_path": "{chain}.a3m",
                    },
                }
            },
            "alignment_path .*{chain}.a3m, .*uniref90_hits, mgnify_hits.*{name}",
        ),
        ({"training": None}, "training: "),
        *(
            (
                {"data": DATA | {"template_hits": null}},
                f"data.template_hits: .*'{null}'",
            )
            for null in ("null", "~", "")
        ),
        (
            {"training": {"kernels": ["norm", "atention"]}},
            "training.kernels: .*'triton'.*'attention'.*'atention'",
        ),
    ],
)
def test_errors_name_the_source_the_key_and_the_mend(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match="my.yaml: .*" + message) as raised:
        make_config(tree(**sections), source="my.yaml")
    assert "\n" not in str(raised.value)


def test_shares_whose_sum_rounds_to_more_than_1_are_taken() -> None:
    shares = {"uniform": 0.55, "profile": 0.34, "same": 0.11}
    assert shares["uniform"] + shares["profile"] + shares["same"] > 1
    assert make_config(tree(features={"masked_msa": shares})).features.masked_msa.same == 0.11


def test_keys_that_contradict_each_other_are_named_and_nothing_else() -> None:
    changes = {"evaluation": {"mode": "async"}, "training": {"keep_checkpoints": 3}}
    with pytest.raises(InputError) as raised:
        make_config(tree(**changes), source="my.yaml")
    start = "my.yaml: training.keep_checkpoints"
    assert str(raised.value).startswith(start)
    assert "\n" not in str(raised.value)


def test_unset_required_key() -> None:
    with pytest.raises(InputError, match="'data'"):
        make_config({})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1", "1:6: .*YAML"),
        ("a: 1\n b: 2\n", "2:3: .*YAML"),
        ("- 1\n", " .*list"),
        ("\0", " .*YAML"),
        ("loss: {}\na:\n  b: 1\n  c: 2\n  b: 3\n", " .*'b' .*lines 3 .*5"),
        ("a: {b: 1, c: 2, b: 3}\n", " .*'b' .*lines 1 .*1"),
        (None, " "),
    ],
)
def test_unreadable_files(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=f"run.yaml:{message}"):
        load_config([path])


def test_on_and_off_are_what_yaml_makes_of_them(tmp_path: Path) -> None:
    for word, value in (("off", False), ("on", True), ("auto", "auto")):
        path = written(tmp_path / f"{word}.yaml", **tree(training={"cuda_graphs": "WORD"}))
        path.write_text(path.read_text().replace("WORD", word))
        assert load_config([path]).training.cuda_graphs == value


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        load_config([tmp_path])


def test_overrides_are_named_where_they_are_wrong(tmp_path: Path) -> None:
    path = written(tmp_path / "run.yaml", **tree())
    for wrong, named, message in (
        ({"training": {"stepz": 1}}, "training.stepz=1", ""),
        ({"training": {"steps": "few"}}, "training.steps=few", "training.steps: "),
        ({"optimiser": None}, "optimiser=null", "optimiser: "),
        ({"preset": "tinny"}, "preset=tinny", "preset: 'tinny'"),
    ):
        with pytest.raises(InputError) as raised:
            load_config([path], {"seed": 3, **wrong, "features": {}})
        assert str(raised.value).startswith(f"override {named}: {message}")
        assert str(raised.value).count("override ") == 1
    path.write_text("{}")
    both = rf"^{path}, override training\.steps=1, override seed=3: .*'data'"
    with pytest.raises(InputError, match=both):
        load_config([path], {"training": {"steps": 1}, "seed": 3})


def test_a_number_that_yaml_reads_as_text_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for text, hint in (("1e3", ": write 1000"), ("1.5e3", ": write 1500"), ("1e-3", "")):
        path.write_text(f"training: {{steps: {text}}}")
        with pytest.raises(InputError) as raised:
            load_config([path], tree())
        assert str(raised.value).endswith(f"(found '{text}'){hint}")


@pytest.mark.parametrize(
    ("key", "path", "message"),
    [
        ("mmcif_path", "{etnry}.cif.gz", r"\{etnry\}.*\{entry\}, \{hash"),
        ("mmcif_path", "pub/{entry.cif.gz", "'}'"),
        ("mmcif_path", "pt/5pti.cif.gz", r"\{entry\}"),
        ("mmcif_path", ["{entry}.cif.gz", "5pti.cif.gz"], r"\{entry\}"),
        ("alignment_path", "{chain}/{nam}.a3m", r"\{nam\}"),
        ("hhr_path", "{name}.hhr", r"\{chain\}"),
    ],
)
def test_placeholders_of_mirrors_paths(key: str, path: str | list[str], message: str) -> None:
    mirrors = {**DATA["mirrors"], key: path}
    with pytest.raises(InputError, match=rf"data\.mirrors\.{key}: .*{message}"):
        make_config({"data": {**DATA, "mirrors": mirrors}})


def test_structures_have_one_format_in_all_layouts() -> None:
    def with_paths(*paths: str) -> object:
        return {"data": {**DATA, "mirrors": {**DATA["mirrors"], "mmcif_path": list(paths)}}}

    given = ["{entry}-v1.2.cif.gz", "{hash}/{extended}.cif.gz"]
    assert make_config(with_paths(*given)).data.mirrors.mmcif_paths == given
    for paths in ([], ["{entry}.cif", "{entry}.cif.gz"], ["{entry}.pdb", "{entry}.cif"]):
        with pytest.raises(InputError, match=r"data\.mirrors"):
            make_config(with_paths(*paths))


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/x", "a/../../../x", "..", ".", "/", "x\ny", "x\0"]
)
def test_names_of_alignments_stay_in_their_folder(name: str) -> None:
    for key, value in (("alignments", ["uniref90_hits", name]), ("template_hits", name)):
        with pytest.raises(InputError, match=rf"data\.{key}"):
            make_config({"data": {**DATA, key: value}})


@pytest.mark.parametrize("name", ["uniref90_hits", "v2.1/hits", "my hits", "hits..old"])
def test_other_names_of_alignments_are_taken(name: str) -> None:
    data = make_config({"data": {**DATA, "alignments": [name], "template_hits": name}}).data
    assert (data.alignments, data.template_hits) == ([name], name)


def test_of_several_files_the_one_that_sets_a_wrong_value_is_named(tmp_path: Path) -> None:
    first = written(tmp_path / "first.yaml", **tree(features={"crop_size": "wide"}))
    second = written(tmp_path / "second.yaml", training={"steps": "many"})
    with pytest.raises(InputError) as raised:
        load_config([first, second], {"training": {"max_recycling": 1}})
    assert re.fullmatch(
        rf"{first}: features\.crop_size: .*; {second}: training\.steps: .*", str(raised.value)
    )
    # Of two that set it the later one, whose value it is.
    with pytest.raises(InputError, match=f"^{second}: training"):
        load_config([written(first, **tree(training={"steps": 5})), second])


def test_a_configuration_cannot_be_changed() -> None:
    config = make_config(tree())
    with pytest.raises(ValidationError, match="frozen"):
        config.training.steps = 3


def test_preset_model_names_the_unknown_key() -> None:
    named = r"^override model\.c_mm=3: .*'model\.c_mm'"
    with pytest.raises(InputError, match=named):
        preset_model("tiny", {"model": {"c_mm": 3}})
    assert isinstance(make_config(tree()), Config)


@pytest.mark.parametrize(
    "image",
    [
        None,
        "docker://registry.example/scalefold:1.0.0",
        "docker://registry.example/scalefold@sha256:" + 64 * "0",
        "oras://registry.example/scalefold:1.0.0",
        "images/scalefold.sif",
    ],
)
def test_container_is_a_reference_or_an_image_file(image: str | None) -> None:
    assert make_config(tree(container=image)).container == image


@pytest.mark.parametrize(
    "image",
    ["registry.example/scalefold:1.0.0", "scalefold", "docker://", "my image.sif", ".sif "],
)
def test_container_without_scheme_or_ending_is_refused(image: str) -> None:
    with pytest.raises(InputError, match="container"):
        make_config(tree(container=image))


def test_checkpoints_are_kept_where_evaluation_runs_beside_training() -> None:
    evaluation, training = {"mode": "async"}, {"keep_checkpoints": 2}
    with pytest.raises(InputError, match=r"training\.keep_checkpoints"):
        make_config(tree(evaluation=evaluation, training=training))
    make_config(tree(evaluation=evaluation))
    make_config(tree(training=training))


ODD_YAML = [
    "a: 2020-99-99", "a: !!int x", "a: !!float x", "a: !!bool x", "a: !!timestamp x", "a: !!null x",
    "a: !!binary x", "a: !!set 3", "a: !!omap 3", "a: !!pairs 3", "a: !!map 3", "a: !!seq x",
    "a: !!python/name:os.system", "a: !x y", "a: &a [*a]", "? [1]\n: 2", "1: 2", "null: 3",
    "? {a: b}\n: c", "a: *b", "<<: 3", "a: " + "[" * 20_000, "- " * 5_000, "{" * 5_000,
    "a: " + "9" * 5_000, 'a: "\\0"', 'a: "\\ud800"', "a: " + "x" * 20_000, "%YAML 9.9\n---\na: 1",
    "a: 1\n---\nb: 2", "\t", "a: 0x", "a: 1:99999999999999999999999999", "2020-01-01: 2",
    "a0: &a0 [x, x]\n"
    + "".join(f"a{i}: &a{i} [{', '.join(9 * [f'*a{i - 1}'])}]\n" for i in range(1, 10)),
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_YAML, ids=range(len(ODD_YAML)))
def test_odd_yaml_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"run\.yaml") as refusal:
        load_config([path])
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 2_000


@pytest.mark.parametrize("kind", ["int", "float", "bool", "timestamp"])
def test_a_value_that_is_not_of_its_tag_is_named_with_its_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"seed: 3\nrun_name: !!{kind} odd\n")
    with pytest.raises(InputError, match=f"line 2: 'odd' .*{kind}"):
        load_config([path])


def test_a_date_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("run_name: 2026-11-23\n" + yaml.safe_dump(tree()))
    assert load_config([path]).run_name == "2026-11-23"


def test_an_alias_may_be_used(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("data:\n  chains: c.tsv\n  mirrors: {mmcif: &here [here], alignments: *here}\n")
    assert load_config([path]).data.mirrors.alignments == ["here"]


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e999", "1" + 400 * "0"])
@pytest.mark.parametrize(
    "key", ["optimiser.learning_rate", "loss.plddt", "evaluation.target_lddt", "training.steps"]
)
def test_numbers_are_finite(key: str, value: str, tmp_path: Path) -> None:
    section, name = key.split(".")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree()) + f"{section}: {{{name}: {value}}}\n")
    with pytest.raises(InputError, match=key):
        load_config([path])


def test_many_findings_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("".join(f"key{i}: {'[' + 99 * '1, ' + ']'}\n" for i in range(100)))
    with pytest.raises(InputError, match="more") as refusal:
        load_config([path])
    assert len(str(refusal.value)) < 20_000
