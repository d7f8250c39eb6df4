from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from scalefold.errors import ChecksumError, InputError
from scalefold.shards import schema
from scalefold.shards.codec import decode_msa, encode_msa
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import write_shard


@pytest.fixture
def shard(tmp_path, make_msa):
    path = tmp_path / "msa-00000.arrow"
    with write_shard(path, "msa") as writer:
        for seed in range(3):
            writer.add(make_msa(seed, rows=8, length=16))
    return path


def test_flipped_bit_in_payload_passes_arrow_but_not_the_row_hash(shard, make_msa):
    content = bytearray(shard.read_bytes())
    payload = make_msa(1, rows=8, length=16).msa.tobytes()
    assert content.count(payload) == 1
    content[content.index(payload) + 77] ^= 0x04
    shard.write_bytes(content)

    with pa.OSFile(str(shard)) as stream:
        pa.ipc.open_file(stream).read_all().validate(full=True)
    file = ShardFile(shard, "msa")
    file.row(0)
    file.row(2)
    with pytest.raises(ChecksumError) as caught:
        file.row(1, "7abc_Q")
    message = str(caught.value)
    stated = encode_msa(make_msa(1, rows=8, length=16))["row_xxh3"][0].as_py()
    assert str(shard) in message
    assert "row 1" in message
    assert "7abc_Q" in message
    assert f"{stated:016x} was written" in message


def test_a_flipped_bit_anywhere_never_changes_what_is_read(shard):
    """Every 13th byte of the file, one bit each: an error, or (padding) the same row hashes."""
    original = shard.read_bytes()
    target = shard.with_name("msa-00001.arrow")
    file = ShardFile(shard, "msa")
    expected = [file.row(i) for i in range(3)]
    caught = 0
    rng = np.random.default_rng(0)
    for position in range(0, len(original), 13):
        damaged = bytearray(original)
        damaged[position] ^= 1 << int(rng.integers(8))
        target.write_bytes(damaged)
        try:
            file = ShardFile(target, "msa")
            rows = [file.row(i) for i in range(file.num_rows)]
        except InputError:
            caught += 1
            continue
        for row, batch in zip(rows, expected, strict=True):
            assert row.equals(batch)
            decode_msa(row)
    assert caught > len(original) / 13 / 3


def test_truncated_file_is_refused(shard):
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(InputError, match=shard.name):
        ShardFile(shard, "msa")


def test_a_damaged_file_s_error_says_how_to_make_it_again(shard, tmp_path):
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0x10
    shard.write_bytes(content)
    for family, stage in (("msa", "alignments"), ("chain", "structures")):
        with pytest.raises(InputError) as caught:
            ShardFile(tmp_path / f"{family}-00012.arrow", family)
        command = f"`scalefold pack --stage {stage} --bucket 12`"
        assert command in str(caught.value)
        assert "then `scalefold pack --stage index`" in str(caught.value)
        assert "delete the file" in str(caught.value)
    with pytest.raises(InputError, match="--stage index"):
        ShardFile(tmp_path / "index.arrow", "index")
    with pytest.raises(ChecksumError, match="--stage alignments --bucket 0"):
        [ShardFile(shard, "msa").row(i) for i in range(3)]


def test_empty_file_is_refused(shard):
    shard.write_bytes(b"")
    with pytest.raises(InputError, match=shard.name):
        ShardFile(shard, "msa")


def test_missing_file_and_row_are_refused(shard, tmp_path):
    with pytest.raises(InputError, match=r"msa-00001\.arrow"):
        ShardFile(tmp_path / "msa-00001.arrow", "msa")
    with pytest.raises(InputError, match="row 3"):
        ShardFile(shard, "msa").row(3)


def test_other_family_is_refused(shard):
    with pytest.raises(InputError, match=r"msa .*chain"):
        ShardFile(shard, "chain")


def test_other_schema_version_is_refused(shard, monkeypatch):
    monkeypatch.setitem(schema.FAMILY_VERSIONS, "msa", 3)
    with pytest.raises(InputError, match=r"version 2\b.*\b3\b"):
        ShardFile(shard, "msa")


def test_foreign_arrow_file_is_refused(tmp_path):
    path = tmp_path / "msa-00000.arrow"
    with pa.OSFile(str(path), "wb") as stream:
        table = pa.table({"a": [1]})
        with pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(InputError, match="not a ScaleFold shard"):
        ShardFile(path, "msa")


def test_schemas_require_all_but_the_stated_columns():
    nullable = {
        family: [field.name for field in fields if field.nullable]
        for family, fields in schema.SCHEMAS.items()
    }
    assert nullable == {
        "msa": [],
        "hits": [],
        "templates": [],
        "chain": ["resolution", "release_date", "cluster_id", "confidence"],
        "index": ["msa_shard", "msa_row", "release_date", "resolution", "cluster_id"],
    }
