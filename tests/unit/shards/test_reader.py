from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle

import numpy as np
import pyarrow as pa
import pytest

from scalefold.errors import ChecksumError, InputError
from scalefold.raw.chain_key import entry_of
from scalefold.shards.buckets import bucket_of
from scalefold.shards.manifest import Manifest
from scalefold.shards.reader import ShardReader
from scalefold.shards.schema import SCHEMAS
from scalefold.shards.sealed_json import sealed
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import ShardFacts, write_shard


def replace_in_manifest(folder, facts: ShardFacts) -> None:
    path = folder / "manifest.json"
    tree = json.loads(path.read_text())
    del tree["sha256"]
    tree["files"] = [f for f in tree["files"] if f["file"] != facts.file]
    tree["files"].append(vars(facts))
    path.write_bytes(sealed(tree))


def rewrite_index(folder, change) -> None:
    """Replace the index by a changed one, consistently with the manifest."""
    rows = ShardFile(folder / "index.arrow", "index").table().to_pylist()
    with write_shard(folder / "index.arrow", "index") as shard:
        shard.add_batch(pa.RecordBatch.from_pylist(change(rows), schema=SCHEMAS["index"]))
    replace_in_manifest(folder, shard.facts)


def digest(folder, keys) -> str:
    """A hash over samples, computed in the calling process."""
    reader = folder if isinstance(folder, ShardReader) else ShardReader(folder)
    state = hashlib.sha256()
    for key in keys:
        sample = reader.sample(key)
        state.update(sample.msa.msa.tobytes() + sample.chain.positions.tobytes())
    return state.hexdigest()


def test_keys_by_split(demo):
    reader = ShardReader(demo.out)
    assert reader.keys("template") == ["1aki_A", "1hml_A", "2crb_A", "4i6p_A"]
    assert reader.keys("train") == ["1a7g_E", "1a8o_A", "1lcd_A", "3zee_A", "4zey_A", "5pti_A"]
    assert len(reader.keys("validation")) == 11
    assert sorted(reader.keys()) == reader.keys()
    assert len(reader) == 21
    assert "1aki_A" in reader
    assert "1aki_B" not in reader
    assert "" not in reader
    assert "zzzz_Z" not in reader


def test_sample_belongs_together(demo):
    reader = ShardReader(demo.out)
    for key in reader.keys("train") + reader.keys("validation"):
        sample = reader.sample(key)
        assert sample.chain.chain_key == key
        assert sample.msa.seq_id == sample.chain.seq_id
        np.testing.assert_array_equal(sample.msa.msa[0], sample.chain.aatype)
        np.testing.assert_allclose(sample.msa.profile.sum(axis=1), 1, atol=22 * 2**-24)
        assert sample.split == ("train" if key in reader.keys("train") else "validation")
        sums = [hit.sum_probs for hit, _ in sample.templates]
        assert sums == sorted(sums, reverse=True)
        for hit, chain in sample.templates:
            assert chain.chain_key == hit.chain_key
            assert entry_of(chain.chain_key) != entry_of(key)
            assert 0 <= hit.q_idx.min() <= hit.q_idx.max() < len(sample.chain)
            assert 0 <= hit.t_idx.min() <= hit.t_idx.max() < len(chain)


def test_reader_works_after_fork_and_pickle(demo):
    reader = ShardReader(demo.out)
    keys = reader.keys("train")
    expected = digest(reader, keys)
    assert digest(pickle.loads(pickle.dumps(reader)), keys) == expected
    receiver, sender = multiprocessing.Pipe(duplex=False)
    parent_files = list(reader._files.values())
    pid = os.fork()
    if pid == 0:
        # Maps of the parent must not be used.
        for file in parent_files:
            file.close()
        sender.send(digest(reader, keys))
        os._exit(0)
    assert receiver.poll(60)
    assert receiver.recv() == expected
    os.waitpid(pid, 0)
    assert digest(reader, keys) == expected


def test_files_are_opened_when_first_read(demo):
    reader = ShardReader(demo.out)
    assert reader._files == {}
    reader.chain("1aki_A")
    bucket = bucket_of("1aki", demo.buckets)
    assert list(reader._files) == [f"chain-{bucket:05d}.arrow"]


def test_unknown_chain_and_template_only_chain_are_refused(demo):
    reader = ShardReader(demo.out)
    with pytest.raises(InputError, match="'9zzz_A'"):
        reader.chain("9zzz_A")
    with pytest.raises(InputError, match=r"1aki_A .*'template'"):
        reader.sample("1aki_A")
    for alike in ("5PTI_a", "5pti"):
        with pytest.raises(InputError, match=rf"'{alike}' .*Did you mean 5pti_A"):
            reader.chain(alike)


def test_missing_folder_and_file(demo_copy, tmp_path):
    with pytest.raises(InputError, match="no such shard folder"):
        ShardReader(tmp_path / "nowhere")
    (demo_copy.out / "msa-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"msa-00001\.arrow"):
        ShardReader(demo_copy.out)


def test_shard_of_another_size_is_noticed_on_opening(demo_copy):
    path = demo_copy.out / "chain-00001.arrow"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=f"{size - 1} bytes.*{size}"):
        ShardReader(demo_copy.out)


def test_index_that_refers_to_an_unknown_file(demo_copy):
    def change(rows):
        rows[3]["chain_shard"] = 77
        return rows

    rewrite_index(demo_copy.out, change)
    with pytest.raises(InputError, match=r"chain-00077\.arrow"):
        ShardReader(demo_copy.out)


def test_unsorted_index_is_refused(demo_copy):
    rewrite_index(demo_copy.out, lambda rows: rows[::-1])
    with pytest.raises(InputError, match="not unique and sorted"):
        ShardReader(demo_copy.out)


def test_index_of_another_run_is_noticed(demo_copy):
    def change(rows):
        a, b = (next(r for r in rows if r["chain_key"] == key) for key in ("1aki_A", "5pti_A"))
        for name in ("chain_shard", "chain_row"):
            a[name], b[name] = b[name], a[name]
        c, d = (next(r for r in rows if r["chain_key"] == key) for key in ("2nwd_X", "5pti_A"))
        for name in ("msa_shard", "msa_row"):
            c[name], d[name] = d[name], c[name]
        return rows

    rewrite_index(demo_copy.out, change)
    reader = ShardReader(demo_copy.out)
    with pytest.raises(InputError, match=r"5pti_A.*1aki_A"):
        reader.chain("1aki_A")
    with pytest.raises(InputError, match="2nwd_X"):
        reader.msa("2nwd_X")


def test_other_schema_version_is_refused(demo_copy):
    path = demo_copy.out / "manifest.json"
    tree = json.loads(path.read_text())
    del tree["sha256"]
    path.write_bytes(sealed({**tree, "schema_version": 3}))
    with pytest.raises(InputError, match="schema version 3"):
        ShardReader(demo_copy.out)


def test_flipped_bit_names_file_row_chain_and_both_hashes(demo_copy):
    reader = ShardReader(demo_copy.out)
    facts = next(r for r in reader.index.to_pylist() if r["chain_key"] == "5pti_A")
    path = demo_copy.out / f"msa-{facts['msa_shard']:05d}.arrow"
    content = bytearray(path.read_bytes())
    payload = reader.msa("5pti_A").msa.tobytes()
    assert content.count(payload) == 1
    content[content.index(payload) + 1000] ^= 0x01
    path.write_bytes(content)
    with pytest.raises(ChecksumError) as caught:
        ShardReader(demo_copy.out).sample("5pti_A")
    words = (str(path), f"row {facts['msa_row']}", "5pti_A", "was written", "Restore it")
    assert all(word in str(caught.value) for word in words)


def test_flipped_bit_in_the_index_is_noticed_on_opening(demo_copy):
    path = demo_copy.out / "index.arrow"
    content = bytearray(path.read_bytes())
    content[content.index(b"5pti_A")] ^= 0x01
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match=r"index\.arrow"):
        ShardReader(demo_copy.out)


def test_manifest_counts(demo):
    manifest = Manifest.read(demo.out)
    assert {k: n for k, n in manifest.counts.items() if k.startswith("chains")} == {
        "chains, train": 6,
        "chains, validation": 11,
        "chains, template": 4,
        "chains set aside": 0,
        "chains set aside, kept as templates": 0,
        "chains with their query alone": 2,
    }
    assert manifest.counts["alignments"] == 17
