"""What a finished folder says of the settings and the list of chains that it was packed from."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from scalefold.config import load_config, make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.raw.chains import read_chains
from scalefold.shards.packed_settings import (
    check_origin,
    other_chains,
    other_settings,
    warn_of_other_settings,
)

ROOT = Path(__file__).parents[3]


def test_as_it_was_packed(demo_copy):
    assert other_settings(demo_copy.out, demo_copy.config) == {}
    assert other_chains(demo_copy.out, read_chains(demo_copy.table)) == set()


def test_shards_of_a_version_without_limits_by_source(caplog):
    """They were packed with the preset's limits as that version had them."""
    config = load_config([ROOT / "tests/data/a3f069b/config.yaml"])
    shards = ROOT / "tests/data/a3f069b/run/shards"
    assert other_settings(shards, config) == {}
    asked = make_config(
        merge(config.model_dump(mode="json"), {"shards": {"max_rows": {"mgnify_hits": 5000}}})
    )
    assert set(other_settings(shards, asked)) == {
        f"shards.max_rows.{name}"
        for name in ("uniref90_hits", "bfd_uniclust_hits", "mgnify_hits", "together")
    }


def test_settings_are_named_with_both_values(demo_copy, caplog):
    demo_copy.settings["max_msa_rows"] = 10
    said = {"shards.max_msa_rows": "10000 there, 10 now"}
    assert other_settings(demo_copy.out, demo_copy.config) == said
    warn_of_other_settings(demo_copy.out, demo_copy.config)
    assert "shards.max_msa_rows: 10000 there, 10 now" in caplog.text


def test_without_summaries_only_the_present_values_are_known(demo_copy):
    for path in demo_copy.out.glob("*-*.json"):
        path.unlink()
    assert other_settings(demo_copy.out, demo_copy.config) == {}
    demo_copy.settings["max_msa_rows"] = 10
    said = other_settings(demo_copy.out, demo_copy.config)
    assert said["shards.max_msa_rows"] == "unknown there, 10 now"
    assert "data.buckets" in said


def test_summaries_of_a_later_packing_say_nothing_of_the_finished_folder(demo_copy):
    demo_copy.settings["max_msa_rows"] = 10
    for family, then in (("chain", "10000"), ("msa", "unknown")):
        for path in demo_copy.out.glob(f"{family}-*.json"):
            tree = json.loads(path.read_text())
            tree["head"]["config_hash"] = "another"
            path.write_text(json.dumps(tree))
        said = other_settings(demo_copy.out, demo_copy.config)
        assert said["shards.max_msa_rows"] == f"{then} there, 10 now"


def test_a_setting_of_another_version_is_named(demo_copy):
    """It counts in the hash, so shards with it are others."""
    manifest = demo_copy.out / "manifest.json"
    tree = json.loads(manifest.read_text())
    del tree["sha256"]
    manifest.write_text(json.dumps({**tree, "config_hash": "another"}))
    for path in demo_copy.out.glob("*-*.json"):
        tree = json.loads(path.read_text())
        del tree["sha256"]
        tree["head"]["config_hash"] = "another"
        tree["head"]["settings"]["shards.row_order"] = "length"
        path.write_text(json.dumps(tree))
    said = {"shards.row_order": "length there, unknown now"}
    assert other_settings(demo_copy.out, demo_copy.config) == said


def test_incomplete_shards_are_an_error(demo_copy):
    (demo_copy.out / "manifest.json").unlink()
    with pytest.raises(InputError, match="not complete"):
        other_settings(demo_copy.out, demo_copy.config)


def test_changed_lines_of_the_list(demo_copy):
    first, second, third, *rest = read_chains(demo_copy.table)
    listed = [
        first._replace(split="validation" if first.split == "train" else "train"),
        second._replace(cluster_id="another"),
        third._replace(chain_key="9new_A"),
        *rest,
    ]
    changed = {first.chain_key, second.chain_key, third.chain_key, "9new_A"}
    assert other_chains(demo_copy.out, listed) == changed


def test_chains_that_were_set_aside_are_no_difference(work):
    work.list_chains(
        ("2nwd_X", "train", "k"),
        ("1aki_A", "train", "l"),  # without an alignment a template
        ("9xyz_A", "train", "n"),  # has no file
    )
    for entry in ("2nwd", "1aki"):
        work.structure(entry)
    work.alignment("2nwd_X")
    work.pack()
    rejected = (work.out / "rejected.tsv").read_text()
    assert "1aki_A" in rejected
    assert "9xyz_A" in rejected
    chains = read_chains(work.table)
    assert other_chains(work.out, chains) == set()
    others = [chain._replace(cluster_id="m") for chain in chains]
    assert other_chains(work.out, others) == {"2nwd_X", "1aki_A"}


def test_a_manifest_of_the_future_is_told_with_its_mend(demo_copy):
    manifest = demo_copy.out / "manifest.json"
    check_origin(demo_copy.out, demo_copy.config)
    os.utime(manifest, (time.time() + 3600,) * 2)
    with pytest.raises(InputError, match=f"touch {manifest}"):
        check_origin(demo_copy.out, demo_copy.config)
    manifest.touch()
    check_origin(demo_copy.out, demo_copy.config)
