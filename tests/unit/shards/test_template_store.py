"""Sequences of packed chains, by entry."""

from __future__ import annotations

import dataclasses
import hashlib

import pyarrow as pa
import pytest

from scalefold.errors import ChecksumError
from scalefold.shards.schema import shard_file
from scalefold.shards.template_store import TemplateStore
from scalefold.shards.writer import write_shard

KEYS = ("1abc_A", "1abc_B", "1abc_x_A", "1abd_A")


def make_store(make_chain, folder):
    """Write chains to two buckets; return the store and what it should say."""
    folder.mkdir()
    rows, sequences = [], {}
    for bucket in (0, 1):
        with write_shard(folder / shard_file("chain", bucket), "chain") as shard:
            for number, key in enumerate(KEYS):
                if number % 2 == bucket:
                    record = make_chain(number, 12, key)
                    seq_id = hashlib.sha256(record.sequence.encode()).digest()
                    record = dataclasses.replace(record, seq_id=seq_id)
                    row = shard.add(record)
                    rows.append((key, bucket, row, seq_id, record.release_date))
                    sequences[key] = record.sequence
    names = ["chain_key", "chain_shard", "chain_row", "seq_id", "release_date"]
    columns = zip(*sorted(rows), strict=True)
    return TemplateStore(folder, pa.table([list(c) for c in columns], names)), sequences


def test_an_entry_has_its_own_chains_alone(make_chain, tmp_path):
    store, sequences = make_store(make_chain, tmp_path / "shards")
    for entry in ("1abc", "1abc_x", "1abd"):
        own = {key: sequences[key] for key in KEYS if key.rpartition("_")[0] == entry}
        assert store.sequences(entry) == own
        assert store.release_date(entry) is not None
    for entry in ("1abb", "1ab", "1abe", "zzzz"):
        assert store.sequences(entry) == {}
        assert store.release_date(entry) is None


def test_a_damaged_sequence_is_an_error(make_chain, tmp_path):
    store, _ = make_store(make_chain, tmp_path / "shards")
    path = tmp_path / "shards" / shard_file("chain", 0)
    codes = make_chain(0, 12, KEYS[0]).aatype.tobytes()
    content = path.read_bytes()
    assert content.count(codes) == 1
    path.write_bytes(content.replace(codes, b"\xff" + codes[1:]))
    with pytest.raises(ChecksumError, match=f"{path.name}, row 0, chain 1abc_A"):
        store.sequences("1abc")
