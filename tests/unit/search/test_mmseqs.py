"""MMseqs2 on a small real database; its GPU mode by command line and memory alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.unit.search.conftest import LIMITS, alignment, needs

from scalefold.errors import InputError
from scalefold.raw.a3m import parse_a3m
from scalefold.search.a3m import query_of
from scalefold.search.mmseqs import (
    check_gpu,
    check_mmseqs_database,
    gpu_bytes,
    mmseqs,
    search_words,
)

SEQUENCE = query_of(alignment("5pti_A"), "5pti_A")


@pytest.fixture(scope="module")
def database(sequences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("mmseqs") / "demo"
    subprocess.run(["mmseqs", "createdb", sequences, prefix, "-v", "1"], check=True)
    return prefix


@needs("mmseqs")
def test_finds_the_family(database: Path) -> None:
    check_mmseqs_database(database)
    content = mmseqs(SEQUENCE, database, LIMITS, options=("-e", "0.001"))
    assert len(parse_a3m(content, SEQUENCE, "found")) > 20


@needs("mmseqs")
def test_the_query_is_left_where_nothing_is_found(database: Path) -> None:
    content = mmseqs("W" * 40, database, LIMITS, options=("-e", "0.001"))
    assert len(parse_a3m(content, "W" * 40, "found")) == 1


def _padded(folder: Path) -> Path:
    prefix = folder / "padded"
    prefix.write_bytes(b"M" * 1000)
    (folder / "padded.dbtype").write_bytes(b"\0\0\0\0")
    (folder / "padded.index").write_text("0\t0\t500\n1\t500\t500\n")
    return prefix


def test_gpu_search_words(tmp_path: Path) -> None:
    words = search_words("query", tmp_path / "padded", LIMITS, ("-s", "8"), use_gpu=True)
    assert words[:2] == ["search", "query"]
    assert words[words.index("--gpu") + 1] == "1"
    plain = search_words("query", tmp_path / "padded", LIMITS, ("-s", "8"), use_gpu=False)
    assert "--gpu" not in plain


def test_gpu_memory_is_checked_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = _padded(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mmseqs").write_text("#!/bin/sh\necho ' --gpu INT   Use GPU'\n")
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 70000\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    check_gpu(database)
    check_gpu(database, gpu_bytes(database))
    with pytest.raises(InputError, match="GB of GPU memory"):
        check_gpu(database, gpu_bytes(database) - 1)
    (programs / "mmseqs").write_text("#!/bin/sh\necho usage\n")
    with pytest.raises(InputError, match="has no --gpu"):
        check_gpu(database)


def test_names_a_missing_and_an_empty_database(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        check_mmseqs_database(tmp_path / "absent")
    database = _padded(tmp_path)
    database.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        check_mmseqs_database(database)
