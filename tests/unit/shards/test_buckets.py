from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scalefold.errors import InputError
from scalefold.raw.chains import ChainRow
from scalefold.shards.buckets import bucket_chains, bucket_of, filled_buckets
from scalefold.shards.schema import shard_file

ROWS = [ChainRow(f"{i}abc_{c}", "train", None) for i in range(1, 60) for c in "BA"]


def test_bucket_is_the_same_for_ever():
    # XXH3-64 of the empty string is a published test vector.
    assert bucket_of("", 2**64) == 0x2D06800538D394C2
    assert [bucket_of(entry, 1000) for entry in ("1abc", "pdb_00001abc")] == [
        bucket_of(entry, 10**6) % 1000 for entry in ("1abc", "pdb_00001abc")
    ]


def test_bucket_does_not_depend_on_the_process():
    script = "from scalefold.shards.buckets import bucket_of; print(bucket_of('1abc', 1000))"
    output = subprocess.check_output(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": "77"}, text=True
    )
    assert int(output) == bucket_of("1abc", 1000)


def test_buckets_partition_the_chains_and_keep_entries_together():
    parts = [bucket_chains(ROWS, bucket, 7) for bucket in range(7)]
    assert sorted(row.chain_key for part in parts for row in part) == sorted(
        row.chain_key for row in ROWS
    )
    for part in parts:
        assert part == sorted(part, key=lambda row: row.chain_key)
        keys = {row.chain_key for row in part}
        assert all(f"{row.entry_id}_{c}" in keys for row in part for c in "AB")
    assert filled_buckets(ROWS, 7) == [i for i, part in enumerate(parts) if part]
    assert all(parts)


@pytest.mark.parametrize("bucket", [-1, 7])
def test_unknown_bucket_is_refused(bucket):
    with pytest.raises(InputError, match="0 to 6"):
        bucket_chains(ROWS, bucket, 7)


def test_every_bucket_that_may_be_has_the_five_digits_of_the_workflow(work):
    work.buckets = 100_000
    assert shard_file("chain", work.config.data.buckets - 1) == "chain-99999.arrow"
    work.buckets += 1
    with pytest.raises(InputError, match=r"data\.buckets: .*100000"):
        _ = work.config
