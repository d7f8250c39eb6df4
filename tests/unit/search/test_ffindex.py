"""ffindex databases: written, read back, read by HH-suite's own program, damaged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.unit.search.conftest import needs

from scalefold.errors import InputError
from scalefold.search.ffindex import LONGEST_NAME, FFIndex, data_file, index_file, write_ffindex

ENTRIES = {"b_A": b"second\n", "a_B": b"", "a_A": b"with\0nul", "a" * LONGEST_NAME: b"long"}


def test_reads_what_it_writes(tmp_path: Path) -> None:
    assert write_ffindex(tmp_path / "db", ENTRIES.items()) == len(ENTRIES)
    index = FFIndex(tmp_path / "db")
    assert {name: index[name] for name in index} == ENTRIES
    assert list(index) == sorted(ENTRIES)
    assert index.num_bytes("b_A") == 7
    assert "c_A" not in index
    with pytest.raises(InputError, match="no entry 'c_A'"):
        index["c_A"]


@needs("ffindex_get", "ffindex_build")
def test_agrees_with_ffindexs_own_programs(tmp_path: Path) -> None:
    folder = tmp_path / "entries"
    folder.mkdir()
    for name, content in ENTRIES.items():
        (folder / name).write_bytes(content)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    paths = [data_file(theirs), index_file(theirs)]
    subprocess.run(["ffindex_build", "-s", *paths, folder], check=True)
    write_ffindex(ours, ENTRIES.items())
    built = FFIndex(theirs)
    assert {name: built[name] for name in built} == ENTRIES
    for name, content in ENTRIES.items():
        got = subprocess.run(
            ["ffindex_get", data_file(ours), index_file(ours), name],
            check=True,
            capture_output=True,
        )
        assert got.stdout == content


@pytest.mark.parametrize(
    "name", ["", "a" * (LONGEST_NAME + 1), "a\tb", "a\nb", "a\0", " a", "é" * LONGEST_NAME]
)
def test_refuses_names_that_programs_would_not_find(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot name an entry"):
        write_ffindex(tmp_path / "db", [(name, b"text")])
    assert list(tmp_path.iterdir()) == []


def test_refuses_no_entries_and_two_of_a_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no entry to write"):
        write_ffindex(tmp_path / "db", [])
    with pytest.raises(InputError, match="two entries"):
        write_ffindex(tmp_path / "db", [("a", b"1"), ("a", b"2")])


@pytest.mark.parametrize(
    ("index", "fault"),
    [
        (b"a\t0\t6\n", "cut off"),
        (b"a\t0\n", "expected a name and two numbers"),
        (b"a\t-1\t5\n", "expected a name and two numbers"),
        (b"a\t0\t0\n", "cut off"),
        (b"a\t0\t" + b"1" * 5000, "expected a name and two numbers"),
        (b"", "is empty"),
    ],
)
def test_refuses_a_damaged_index(tmp_path: Path, index: bytes, fault: str) -> None:
    data_file(tmp_path / "db").write_bytes(b"text\0")
    index_file(tmp_path / "db").write_bytes(index)
    with pytest.raises(InputError, match=fault):
        FFIndex(tmp_path / "db")


def test_refuses_an_entry_that_does_not_end(tmp_path: Path) -> None:
    data_file(tmp_path / "db").write_bytes(b"text\0")
    index_file(tmp_path / "db").write_bytes(b"a\t0\t4\n")
    index = FFIndex(tmp_path / "db")
    with pytest.raises(InputError, match="NUL"):
        index["a"]
