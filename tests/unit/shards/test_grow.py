"""A list of chains that grows: what is packed again, and that nothing else is to be."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.unit.shards.conftest import DEMO, Workplace, demo_workplace, redate

from scalefold.chains.packed import read_shards
from scalefold.errors import InputError
from scalefold.raw.chains import read_chains, with_splits
from scalefold.raw.raw_folder import alignment_folder, mmcif_path
from scalefold.shards.buckets import bucket_of
from scalefold.shards.manifest import Manifest
from scalefold.shards.pack import pack_alignments, pack_index, pack_structures
from scalefold.shards.packed_settings import other_chains
from scalefold.shards.reader import ShardReader
from scalefold.shards.verify import verify

QUIET = Console(quiet=True)
FORMER = Path(__file__).parents[2] / "data/a3f069b"
ROWS = [tuple(line.split("\t")) for line in (DEMO / "chains.tsv").read_text().splitlines()[1:]]


def hashes(folder: Path, pattern: str = "*") -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob(pattern)
    }


def pack_bucket(work: Workplace, entry: str) -> None:
    """What a workflow packs after a change of one entry."""
    bucket = bucket_of(entry, work.buckets)
    for stage in (pack_structures, pack_alignments):
        stage(work.config, work.raw, work.out, bucket, QUIET)
    pack_index(work.config, work.raw, work.out, QUIET)


@pytest.mark.parametrize("added", ["1aki_A", "2nwd_X"], ids=["a template", "a sample"])
def test_a_new_chain_touches_its_bucket_and_the_index(demo, tmp_path, added):
    """1aki is the template of others, in buckets that stay as they are."""
    work = demo_workplace(tmp_path)
    work.buckets = demo.buckets
    whole = work.table.read_text()
    work.list_chains(*(row for row in ROWS if row[0] != added))
    work.pack()
    entry = added[:4]
    own = f"{bucket_of(entry, work.buckets):05d}"
    before = {
        name: (work.out / name).stat().st_mtime_ns
        for name in hashes(work.out, "[cmh][hsi]*-*")
        if own not in name
    }
    templates = hashes(work.out, "templates-*")
    work.table.write_text(whole)
    pack_bucket(work, entry)
    assert {name: (work.out / name).stat().st_mtime_ns for name in before} == before
    assert len(before) == 5 * (work.buckets - 1)
    assert hashes(work.out, "templates-*") != templates
    # As packed from scratch, to the last bit; summaries hold no time and no path either.
    assert hashes(work.out) == hashes(demo.out)


def test_a_removed_and_a_renewed_chain_touch_theirs(demo, demo_copy):
    demo_copy.list_chains(*(row for row in ROWS if row[0] != "1aki_A"))
    pack_bucket(demo_copy, "1aki")
    kept = [hit.chain_key for hit in ShardReader(demo_copy.out).templates("2nwd_X")]
    assert kept == ["1hml_A"]
    assert verify(demo_copy.out) == []
    demo_copy.list_chains(*ROWS)
    redate(mmcif_path(demo_copy.raw, "1aki"), "2023-01-01")  # newer than 2nwd
    pack_bucket(demo_copy, "1aki")
    counts = Manifest.read(demo_copy.out).counts
    assert [h.chain_key for h in ShardReader(demo_copy.out).templates("2nwd_X")] == ["1hml_A"]
    newer = "template hits, too new, or of unknown date"
    assert counts[newer] > Manifest.read(demo.out).counts[newer]
    pack_bucket(demo_copy, "1aki")
    demo_copy.structure("1aki")
    pack_bucket(demo_copy, "1aki")
    assert hashes(demo_copy.out) == hashes(demo.out)


def test_templates_are_those_of_the_version_that_located_them_at_once(tmp_path):
    """An independent record: that version's shards of the same chains."""
    former = ShardReader(FORMER / "run/shards")
    assert former.manifest.schema_version == 1
    work = demo_workplace(tmp_path)
    work.list_chains(*(row for row in ROWS if row[0] in former))
    work.pack()
    reader = ShardReader(work.out)
    samples = [*former.keys("train"), *former.keys("validation")]
    assert any(former.templates(key) for key in samples)
    for key in samples:
        np.testing.assert_array_equal(reader.msa(key).msa, former.msa(key).msa)
        ours, theirs = reader.templates(key), former.templates(key)
        for one, other in zip(ours, theirs, strict=True):
            assert (one.chain_key, one.sum_probs, one.prob) == (
                other.chain_key,
                other.sum_probs,
                other.prob,
            )
            np.testing.assert_array_equal(one.q_idx, other.q_idx)
            np.testing.assert_array_equal(one.t_idx, other.t_idx)


def test_alignments_of_the_former_version_are_refused_with_the_command(demo_copy):
    path = demo_copy.out / "msa-00001.json"
    tree = json.loads(path.read_text())
    del tree["sha256"], tree["hits"]
    tree["head"]["schema_version"] = 1
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=r"msa-00001\.json: .*\b1\b.*--forcerun fetch_alignments "):
        pack_index(demo_copy.config, demo_copy.raw, demo_copy.out, QUIET)
    for bucket in range(demo_copy.buckets):
        pack_alignments(demo_copy.config, demo_copy.raw, demo_copy.out, bucket, QUIET)
    pack_index(demo_copy.config, demo_copy.raw, demo_copy.out, QUIET)


def test_alignments_depend_on_no_other_bucket(demo_copy):
    own = bucket_of("2nwd", demo_copy.buckets)
    before = hashes(demo_copy.out, "[mh]*-*")
    for path in demo_copy.out.glob("chain-*"):
        if f"{own:05d}" not in path.name:
            path.unlink()
    shutil.rmtree(alignment_folder(demo_copy.raw, "5pti_A"), ignore_errors=True)
    pack_alignments(demo_copy.config, demo_copy.raw, demo_copy.out, own, QUIET)
    assert hashes(demo_copy.out, "[mh]*-*") == before


def test_alignments_that_came_after_packing_are_not_overlooked(work):
    """As those that a search brings, for which the workflow packs no other bucket."""
    work.list_chains(("5pti_A", "train", ""), ("1a8o_A", "train", ""))
    for entry in ("5pti", "1a8o"):
        work.structure(entry)
    work.alignment("5pti_A")
    assert work.pack().counts["chains set aside"] == 1
    work.alignment("1a8o_A")
    bucket = bucket_of("1a8o", work.buckets)
    with pytest.raises(InputError, match=rf"1a8o_A.*msa-{bucket:05d}\.arrow"):
        pack_index(work.config, work.raw, work.out, QUIET)
    pack_bucket(work, "1a8o")
    assert len(ShardReader(work.out).keys("train")) == 2


def test_a_second_list_splits_what_is_packed(demo, demo_copy):
    """By the index alone; what it does not list is a template."""
    later = {"5pti_A": "validation", "2nwd_X": "train"}
    cluster = {key: cluster for key, _, cluster in ROWS}
    splits = demo_copy.folder / "splits.tsv"

    def index_with(*rows: tuple[str, str, str]) -> None:
        lines = ("\t".join(row) for row in [("chain_key", "split", "cluster_id"), *rows])
        splits.write_text("\n".join(lines) + "\n")
        data = demo_copy.config.data.model_copy(update={"splits": splits})
        config = demo_copy.config.model_copy(update={"data": data})
        pack_index(config, demo_copy.raw, demo_copy.out, QUIET)
        assert other_chains(demo_copy.out, with_splits(read_chains(demo_copy.table), data)) == set()

    index_with(*((key, split, cluster[key]) for key, split in later.items()))
    samples = {key for key, split, _ in ROWS if split != "template"}
    assert {chain.chain_key for chain in read_shards(demo_copy.out)} == samples, "to split again"
    reader = ShardReader(demo_copy.out)
    found = dict(zip(reader.keys(), reader.index["split"].to_pylist(), strict=True))
    assert found == {key: later.get(key, "template") for key in cluster}
    assert [hit.chain_key for hit in reader.templates("2nwd_X")] == ["1aki_A", "1hml_A"]
    assert verify(demo_copy.out) == []
    index_with(*ROWS)
    assert hashes(demo_copy.out) == hashes(demo.out)
    for row, fault in {
        ("9zzz_A", "train", ""): "not listed",
        ("1aki_A", "train", cluster["1aki_A"]): "a template",
        ("5pti_A", "train", "another"): "'another'",
    }.items():
        with pytest.raises(InputError, match=rf"splits\.tsv: {row[0]} .*{fault}"):
            index_with(row)
