"""The number of buckets follows from the list of chains, until something is packed."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from scalefold.shards.bucket_count import default_bucket_count, with_bucket_count
from scalefold.shards.pack import pack_structures
from scalefold.shards.packed_settings import other_settings

QUIET = Console(quiet=True)


def test_numbers_for_short_and_long_lists() -> None:
    """96 chains have 4 jobs a bucket and 9 of the run at the most: 40 in all leave 7 buckets."""
    assert default_bucket_count(1) == 1
    assert 2 <= default_bucket_count(96) <= 7
    assert default_bucket_count(540_000) == default_bucket_count(700_000) == 400
    counts = [default_bucket_count(chains) for chains in range(1, 100_000, 97)]
    assert counts == sorted(counts)


def test_the_first_packing_chooses_and_the_number_is_kept(work) -> None:
    work.buckets = None
    work.list_chains(("5pti_A", "train", "b"))
    work.structure("5pti")
    work.alignment("5pti_A")
    assert with_bucket_count(work.config, work.out).data.num_buckets == 1
    pack_structures(work.config, work.raw, work.out, 0, QUIET)
    longer = [(f"{n:04}_A", "train", "") for n in range(1000)]
    work.list_chains(("5pti_A", "train", "b"), *longer)
    assert with_bucket_count(work.config, work.out).data.num_buckets == 1
    assert with_bucket_count(work.config, work.folder / "new").data.num_buckets > 10
    work.buckets = 5
    assert with_bucket_count(work.config, work.out).data.num_buckets == 5


@pytest.mark.parametrize("state", ["finished", "not finished", "other settings besides", "damaged"])
def test_a_folder_packed_with_a_number_keeps_it(demo_copy, state) -> None:
    demo_copy.buckets = None
    if state == "not finished":
        (demo_copy.out / "manifest.json").unlink()
    if state == "damaged":
        (latest, *_) = sorted(
            demo_copy.out.glob("*-*.json"), key=lambda path: -path.stat().st_mtime_ns
        )
        latest.write_text(latest.read_text().replace('"data.buckets": 3', '"data.buckets": 7'))
        assert with_bucket_count(demo_copy.config, demo_copy.out).data.num_buckets == 3
        return
    if state == "other settings besides":  # begun, not finished
        stray = json.loads((demo_copy.out / "chain-00000.json").read_text())
        stray["head"]["settings"]["data.buckets"] = 9
        stray["head"]["config_hash"] = "0" * 12
        del stray["sha256"]
        (demo_copy.out / "chain-00008.json").write_text(json.dumps(stray))
    assert with_bucket_count(demo_copy.config, demo_copy.out).data.num_buckets == 3
    if state != "not finished":
        assert other_settings(demo_copy.out, demo_copy.config) == {}
    demo_copy.pack()
    assert not (demo_copy.out / "chain-00003.json").exists()
