from __future__ import annotations

from typing import Any

import pytest

from scalefold.config import make_config, run_key
from scalefold.config.identity import (
    FORMER_VALUES,
    FREE_KEYS,
    former_packing_settings,
    leaves,
    packing_hash,
    packing_hashes,
    packing_settings,
    trajectory_settings,
)
from scalefold.config.load import merge

BASE: dict[str, Any] = {
    "preset": "tiny",
    "data": {"chains": "c.tsv", "mirrors": {"mmcif": ["m"], "alignments": ["a"]}},
}


def key(**sections: Any) -> str:
    return run_key(make_config(BASE | sections))


def test_key_is_twelve_hex_digits_and_follows_the_content() -> None:
    assert int(key(), 16) >= 0
    assert len(key()) == 12
    learning_rate = make_config(BASE).optimiser.learning_rate
    assert key(optimiser={"learning_rate": learning_rate}) == key()


@pytest.mark.parametrize(
    "sections",
    [
        {"run_name": "other", "results": "elsewhere", "container": "x.sif"},
        {"training": {"steps": 5, "checkpoint_every": 1, "log_every": 1, "loader_workers": 0}},
        {"evaluation": {"seed": 5, "mode": "async", "target_lddt": 0.8}},
        {"shards": {"compression": "lz4"}},
    ],
)
def test_what_the_trajectory_does_not_depend_on_leaves_the_key(sections: dict[str, Any]) -> None:
    assert key(**sections) == key()


@pytest.mark.parametrize(
    "sections",
    [
        {"seed": 1},
        {"features": {"crop_size": 32}},
        {"sampling": {"weights": "uniform"}},
        {"sampling": {"distilled_share": 0.75}},
        {"model": {"template": {"enabled": False}}},
        {"loss": {"chi": 0.5}},
        {"optimiser": {"clip_norm": 0.2}},
        {"training": {"global_batch_size": 64}},
        {"training": {"precision": "bf16"}},
        {"training": {"initial_weights": "w.pt"}},
    ],
)
def test_what_it_depends_on_changes_the_key(sections: dict[str, Any]) -> None:
    assert key(**sections) != key()


def test_settings_of_predicted_structures_count_where_there_are_any() -> None:
    share = {"sampling": {"distilled_share": 0.75}}
    other = {"features": {"distilled": {"min_plddt": 60}}}
    assert key(**other) == key()
    assert key(**share, **other) != key(**share)


def test_settings_of_a_version_that_lacked_some_equal_those_with_their_former_values() -> None:
    now = make_config(BASE | {"loss": {"violation_ca_c_n_stddev": 0.0311}})
    tree = now.model_dump(mode="json")
    del tree["loss"]["violation_ca_c_n_stddev"]
    assert trajectory_settings(tree) == trajectory_settings(now.model_dump(mode="json"))
    assert run_key(now) == key()
    assert key(loss={"violation_ca_c_n_stddev": 0.014}) != key()


def test_former_values_are_of_settings_that_exist() -> None:
    settings = dict(leaves(make_config(BASE).model_dump(mode="json")))
    assert settings.keys() >= FORMER_VALUES.keys()


def test_every_setting_is_either_free_or_in_the_key() -> None:
    tree = make_config(BASE).model_dump(mode="json")
    sections = {name.partition(".")[0] for name in trajectory_settings(tree)}
    free = {name for name in FREE_KEYS if "." not in name}
    assert sections | free == set(tree)
    assert not sections & free


def packed_with(**sections: Any) -> str:
    base = merge(BASE, {"data": {"buckets": 4}})
    return packing_hash(make_config(merge(base, sections)))


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"chains": "renamed.tsv", "mirrors": {"mmcif": ["n"], "alignments": ["b"]}}},
        {"data": {"download_threads": 3}},
        {"run_name": "other", "seed": 5},
    ],
)
def test_where_raw_files_are_from_is_no_reason_to_pack_again(sections: dict[str, Any]) -> None:
    assert packed_with(**sections) == packed_with()


def test_what_shards_depend_on_changes_their_hash() -> None:
    changed = [
        {"data": {"alignments": ["x"]}},
        {"data": {"buckets": 5}},
        {"data": {"template_hits": None}},
        {"shards": {"max_msa_rows": 7}},
        {"shards": {"max_rows": {"mgnify_hits": 5000}}},
        {"shards": {"max_rows": {"uniref90_hits": None, "mgnify_hits": None}}},
        {"shards": {"compression": "zstd"}},
    ]
    assert len({packed_with(), *(packed_with(**c) for c in changed)}) == len(changed) + 1


@pytest.mark.parametrize("preset", ["initial_training", "mlperf", "tiny"])
def test_shards_of_versions_without_limits_by_source_stay_valid(preset: str) -> None:
    config = make_config(merge(BASE, {"preset": preset, "data": {"buckets": 4}}))
    tree = config.model_dump(mode="json")
    del tree["shards"]["max_rows"]
    former = {
        "data.alignments": tree["data"]["alignments"],
        "data.template_hits": tree["data"]["template_hits"],
        "data.buckets": tree["data"]["buckets"],
        **{f"shards.{name}": value for name, value in tree["shards"].items()},
    }
    assert former_packing_settings(config) == former
    assert len(set(packing_hashes(config))) == 2
    assert packing_hashes(config)[0] == packing_hash(config)


def test_limits_that_somebody_asks_for_are_packed_anew() -> None:
    more = {"data": {"buckets": 4}, "shards": {"max_rows": {"mgnify_hits": 5000}}}
    config = make_config(merge(BASE, more))
    assert set(packing_hashes(config)) == {packing_hash(config)}
    assert former_packing_settings(config) == packing_settings(config)
