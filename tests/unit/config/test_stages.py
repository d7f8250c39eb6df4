"""Several trainings in a row in one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scalefold.config import load_config, load_stages, make_config, run_key
from scalefold.config.stages import teachers
from scalefold.errors import InputError

DATA = {"chains": "chains.tsv", "mirrors": {"mmcif": ["m"], "alignments": ["a"]}}
STAGES: dict[str, Any] = {
    "first": {},
    "second": {"training": {"global_batch_size": 256}},
    "fine": {"preset": "finetuning", "training": {"steps": 7}},
}
TREE: dict[str, Any] = {
    "run_name": "all",
    "data": DATA,
    "training": {"steps": 5, "log_every": 3, "initial_weights": "given.pt"},
    "stages": STAGES,
}


def written(folder: Path, **sections: Any) -> list[Path]:
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(TREE | sections, sort_keys=False))
    return [path]


def test_each_stage_is_the_configuration_with_its_settings_on_top(tmp_path: Path) -> None:
    stages = load_stages(written(tmp_path))
    assert list(stages) == list(STAGES)
    assert [s.training.steps for s in stages.values()] == [5, 5, 7]
    assert [s.training.global_batch_size for s in stages.values()] == [128, 256, 128]
    assert [s.features.crop_size for s in stages.values()] == [256, 256, 384]
    assert all(s.training.log_every == 3 and not s.stages for s in stages.values())


def test_a_stage_starts_from_the_last_checkpoint_of_the_one_before(tmp_path: Path) -> None:
    first, second, fine = load_stages(written(tmp_path)).values()
    assert first.training.initial_weights == Path("given.pt")
    for before, after in ((first, second), (second, fine)):
        assert after.training.initial_weights == Path(
            f"results/all/weights/{run_key(before)}/step-00000005"
        )


def test_a_change_of_one_stage_is_another_key_of_it_and_of_those_after_it(tmp_path: Path) -> None:
    def keys(**second: Any) -> list[str]:
        changed = STAGES | {"second": STAGES["second"] | second}
        return [run_key(s) for s in load_stages(written(tmp_path, stages=changed)).values()]

    before = keys()
    other = keys(optimiser={"clip_norm": 0.2})
    assert before[0] == other[0]
    assert not set(before[1:]) & set(other[1:])
    # Its number of steps is not in its own key, as without stages, but in what follows from it.
    longer = keys(training={"global_batch_size": 256, "steps": 6})
    assert longer[:2] == before[:2]
    assert longer[2] != before[2]


def test_a_run_may_be_renamed(tmp_path: Path) -> None:
    def keys(**overrides: Any) -> list[str]:
        return [run_key(s) for s in load_stages(written(tmp_path), overrides).values()]

    assert keys() == keys(run_name="other", results="/scratch/results")


def test_overrides_win_over_stages(tmp_path: Path) -> None:
    stages = load_stages(written(tmp_path), {"training": {"steps": 2}})
    assert [s.training.steps for s in stages.values()] == [2, 2, 2]


def test_a_stage_alone_is_a_whole_configuration(tmp_path: Path) -> None:
    fine = load_stages(written(tmp_path))["fine"]
    assert make_config(fine.model_dump(mode="json")) == fine


def test_without_stages_there_is_one_training_without_a_name(tmp_path: Path) -> None:
    paths = written(tmp_path, stages={})
    assert load_stages(paths) == {"": load_config(paths)}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"a": {"training": {"step": 1}}}, r"stages\.a: .*'training\.step'.*steps"),
        ({"a": {"data": {}, "predict": {}}}, r"stages\.a: data, predict"),
        ({"a": {"training": {"initial_weights": "x"}}}, r"stages\.a: training\.initial_weights"),
        ({"A b": {}}, r"stages\.A b"),
        ({"a": {"training": 3}}, r"stages\.a: training: "),
        (
            {"a": {"evaluation": {"mode": "async", "target_lddt": 0.8}}, "b": {}},
            r"stages\.b: .*step 5 .*target_lddt",
        ),
    ],
)
def test_errors_name_the_stage(tmp_path: Path, stages: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"my\.yaml, {message}"):
        load_stages(written(tmp_path, stages=stages))


SHARE = {"sampling": {"distilled_share": 0.75}}
GIVEN = {"training": {"initial_weights": "given.pt"}}
SET = {"fasta": "s.fasta", "query_alone": True}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"stages": {"a": {}, "b": {}}}, {}),
        ({"stages": {"a": {}, "b": SHARE, "c": SHARE}, "distillation": SET}, {"b": "a", "c": "b"}),
        ({"stages": {"a": SHARE, "b": SHARE}, "distillation": SET} | GIVEN, {"a": None, "b": "a"}),
        (
            {"stages": {"a": {}, "b": SHARE}, "distillation": SET | {"weights": "w.pt"}},
            {"b": None},
        ),
        ({"stages": {}, "distillation": SET} | SHARE | GIVEN, {"": None}),
    ],
)
def test_the_weights_that_predict_are_those_that_a_training_starts_from(
    tmp_path: Path, tree: dict[str, Any], expected: dict[str, str | None]
) -> None:
    assert teachers(load_stages(written(tmp_path, **({"training": {}} | tree)))) == expected


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"stages": {"a": {}, "b": SHARE}}, r"stages\.b.*0\.75.*distillation\.fasta"),
        ({"stages": {"a": SHARE, "b": {}}, "distillation": SET}, r"stages\.a.*which weights"),
        ({"stages": {"a": {}, "b": {}}, "distillation": SET}, r"s\.fasta.*distilled_share"),
    ],
)
def test_sequences_weights_and_share_go_together(
    tmp_path: Path, tree: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        teachers(load_stages(written(tmp_path, training={}, **tree)))
