"""The raw files that went into shards."""

from __future__ import annotations

import hashlib

from scalefold.shards.source_files import RawSnapshot, SourceFile, source_columns


def test_snapshot_is_that_of_the_set_of_files():
    a, b = SourceFile("a", 3, "11" * 32), SourceFile("b", 4, "22" * 32)
    snapshot = RawSnapshot.of([source_columns([b]), source_columns([a, b])])
    assert (snapshot.files, snapshot.bytes) == (2, 7)
    lines = f"{a.sha256}  a\n{b.sha256}  b\n"
    assert snapshot.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert RawSnapshot.of([source_columns([a])]) != snapshot


def test_source_file_states_path_below_raw_and_hash(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "f").write_bytes(b"abc")
    expected = SourceFile("x/f", 3, hashlib.sha256(b"abc").hexdigest())
    assert SourceFile.of(tmp_path, tmp_path / "x" / "f") == expected
