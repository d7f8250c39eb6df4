import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalefold.checkpoint.provenance import InputHashes
from scalefold.checkpoint.read import FormerData, Metadata
from scalefold.checkpoint.resume import (
    FREE_KEYS,
    check_resumable,
    config_differences,
    former_data,
)
from scalefold.config import Config, make_config
from scalefold.config.identity import config_hash
from scalefold.config.load import merge
from scalefold.errors import InputError

HERE = Path("weights/step-00000004")


def _metadata(config: Config, initial: str | None = None) -> Metadata:
    tree = config.model_dump(mode="json")
    return Metadata(1, 4, tree, config_hash(config), "d" * 64, "0.1.0", None, {}, initial)


@pytest.mark.parametrize(
    "change",
    [
        {"run_name": "other", "results": "elsewhere"},
        {"training": {"steps": 99, "checkpoint_every": 7, "keep_checkpoints": 2, "log_every": 3}},
        {"training": {"loader_workers": 2, "prefetch": 1, "max_non_finite_steps": 1}},
        {"evaluation": {"recycling": 0}},
        {"data": {"buckets": 3}},
        {},
    ],
)
def test_what_the_result_does_not_depend_on_may_change(
    change: dict[str, Any], micro_tree: dict[str, Any]
) -> None:
    before, now = make_config(micro_tree), make_config(merge(micro_tree, change))
    check_resumable(HERE, _metadata(before), now, InputHashes("d" * 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "seed: 0 in the checkpoint, 7 now"),
        ({"model": {"c_m": 16}}, "model.c_m: 8 in the checkpoint, 16 now"),
        ({"optimiser": {"learning_rate": 0.5}}, "optimiser.learning_rate: 0.001 in"),
        ({"training": {"global_batch_size": 4}}, "training.global_batch_size: 2 in"),
        ({"training": {"precision": "bf16"}}, "training.precision: 'fp32' in"),
        ({"loss": {"violation": 1.0}}, "loss.violation: 0.0 in"),
        ({"features": {"crop_size": 8}}, "features.crop_size: 16 in"),
        ({"sampling": {"weights": "uniform"}}, "sampling.weights: 'alphafold' in"),
    ],
)
def test_what_it_depends_on_may_not(
    change: dict[str, Any], message: str, micro_tree: dict[str, Any]
) -> None:
    before, now = make_config(micro_tree), make_config(merge(micro_tree, change))
    with pytest.raises(InputError) as error:
        check_resumable(HERE, _metadata(before), now, InputHashes("d" * 64))
    assert message in str(error.value)
    assert f"What differs (1):\n  {message}" in str(error.value)


def test_other_data_are_refused_with_both_hashes(micro: Config) -> None:
    with pytest.raises(InputError, match=r"dddddddddddd.*eeeeeeeeeeee"):
        check_resumable(HERE, _metadata(micro), micro, InputHashes("e" * 64))
    with pytest.raises(InputError, match="--accept-new-data") as error:
        check_resumable(HERE, _metadata(micro), micro, InputHashes("e" * 64))
    assert "\n" not in str(error.value)


def test_other_data_are_accepted_on_request(micro_tree: dict[str, Any]) -> None:
    accepting = make_config(merge(micro_tree, {"training": {"accept_new_data": True}}))
    before = _metadata(make_config(micro_tree))
    check_resumable(HERE, before, accepting, InputHashes("e" * 64))
    assert former_data(before, InputHashes("d" * 64)) == []
    first = FormerData(4, "d" * 64)
    assert former_data(before, InputHashes("e" * 64)) == [first]
    again = dataclasses.replace(before, step=6, data_manifest_sha256="e" * 64, former_data=[first])
    assert former_data(again, InputHashes("f" * 64)) == [first, FormerData(6, "e" * 64)]
    other = make_config(merge(micro_tree, {"training": {"accept_new_data": True}, "seed": 7}))
    with pytest.raises(InputError, match="seed: 0 in"):
        check_resumable(HERE, before, other, InputHashes("e" * 64))


def test_other_initial_weights_under_the_same_name_are_refused_with_both_hashes(
    micro_tree: dict[str, Any],
) -> None:
    config = make_config(merge(micro_tree, {"training": {"initial_weights": "w.pt"}}))
    with pytest.raises(InputError) as error:
        check_resumable(HERE, _metadata(config, "a" * 64), config, InputHashes("d" * 64, "b" * 64))
    assert (
        "What differs (1):\n  initial weights: sha256 aaaaaaaaaaaa in the checkpoint, bbbbbbbbbbbb "
        "now (w.pt was replaced"
    ) in str(error.value)
    # Not recorded by the version that wrote the checkpoint; or gone now, which who reads it says.
    check_resumable(HERE, _metadata(config), config, InputHashes("d" * 64, "b" * 64))
    check_resumable(HERE, _metadata(config, "a" * 64), config, InputHashes("d" * 64))


def test_the_refusal_does_not_contradict_itself(micro: Config) -> None:
    other = make_config({**micro.model_dump(mode="json"), "seed": 7})
    with pytest.raises(InputError) as error:
        check_resumable(HERE, _metadata(micro), other, InputHashes("e" * 64))
    fix = str(error.value).splitlines()[-1]
    allowed = fix.partition("only these may change: ")[2].split(", ")
    assert set(FREE_KEYS) - set(allowed) == {"data", "shards"}
    assert "The shards must be" in fix


def test_many_differences_are_a_short_list_data_first(micro_tree: dict[str, Any]) -> None:
    heads = {name: 3 for name in ("num_heads_msa", "num_heads_pair", "c_hidden_outer")}
    change = {"model": {"c_m": 16, "c_z": 16, "c_s": 24, "evoformer": heads, "extra_msa": heads}}
    before, now = make_config(micro_tree), make_config(merge(micro_tree, change))
    with pytest.raises(InputError) as error:
        check_resumable(HERE, _metadata(before), now, InputHashes("e" * 64))
    head, *lines, fix = str(error.value).splitlines()
    assert head.endswith("What differs (10):")
    assert lines[0].startswith("  training data: manifest dddddddddddd")
    assert lines[1] == "  model.c_m: 8 in the checkpoint, 16 now"
    assert lines[8:] == ["  and 2 more"]
    assert fix.startswith("Undo the changes, or start a new run")


def test_all_differences_are_found_and_absent_keys_too() -> None:
    before = {"a": {"x": 1, "y": 2}, "b": 3}
    now = {"a": {"x": 1, "y": 4, "z": 5}}
    assert list(config_differences(before, now)) == [
        ("a.y", 2, 4),
        ("a.z", "(absent)", 5),
        ("b", 3, "(absent)"),
    ]


def test_free_keys_exist(micro: Config) -> None:
    tree = micro.model_dump(mode="json")
    for key in FREE_KEYS:
        node = tree
        for part in key.split("."):
            assert part in node, key
            node = node[part]
