from __future__ import annotations

import gzip
import io
import random
import tracemalloc
import zlib
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.fetch.mirrors import Downloader, UnavailableError
from scalefold.raw.compressed import MAX_STRUCTURE_BYTES, RAISE_LIMIT, read_bytes, unpacked
from scalefold.raw.mmcif import read_entry
from scalefold.raw.outline import read_outline

MIB = 1 << 20


def bomb(megabytes: int) -> bytes:
    """A kilobyte a megabyte."""
    packer = zlib.compressobj(9, wbits=31)
    zeros = b"\0" * MIB
    return b"".join([*(packer.compress(zeros) for _ in range(megabytes)), packer.flush()])


@pytest.mark.parametrize("content", [b"", b"x", b"ab" * (3 * MIB), random.Random(0).randbytes(MIB)])
def test_plain_and_gzipped_files_of_one_or_more_members(tmp_path: Path, content: bytes) -> None:
    packed = gzip.compress(content)
    for name, stored, expected in (
        ("plain", content, content),
        ("a.gz", packed, content),
        ("gzipped", packed, content),
        ("members.gz", packed + packed, content * 2),
        ("padded.gz", packed + b"\0" * 9 + packed + b"\0" * (2 * MIB), content * 2),
    ):
        (tmp_path / name).write_bytes(stored)
        assert read_bytes(tmp_path / name) == expected


@pytest.mark.parametrize("cut", [1, 5, 9, 50])
def test_truncated(cut: int) -> None:
    packed = gzip.compress(random.Random(0).randbytes(MIB))
    with pytest.raises(EOFError):
        list(unpacked(io.BytesIO(packed[:-cut])))


def test_a_member_that_is_none() -> None:
    with pytest.raises(zlib.error):
        list(unpacked(io.BytesIO(gzip.compress(b"x") + b"garbage")))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "1abc.cif.gz"
    path.write_bytes(bomb(200))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"1abc\.cif\.gz.*data\.max_structure_megabytes"):
        read_entry(path, 10 * MIB, RAISE_LIMIT)
    downloader = Downloader(max_unpacked_bytes=10 * MIB)
    with pytest.raises(UnavailableError, match=r"data\.max_structure_megabytes"):
        downloader.get([str(tmp_path)], path.name, tmp_path / "out/1abc.cif.gz")
    assert not (tmp_path / "out/1abc.cif.gz").exists()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * MIB
    Downloader(max_unpacked_bytes=200 * MIB).get(
        [str(tmp_path)], path.name, tmp_path / "out/1abc.cif.gz"
    )


def test_where_no_configuration_says_how_large_a_file_may_be_there_is_a_limit(
    tmp_path: Path,
) -> None:
    path = tmp_path / "1abc.cif"
    with path.open("wb") as file:
        file.truncate(MAX_STRUCTURE_BYTES + 1)
    with pytest.raises(
        InputError, match=r"1abc\.cif: has more than 500 MB, unpacked. Only its first"
    ):
        read_outline(path)


def test_a_large_plain_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1abc.pdb"
    path.write_bytes(b"REMARK\n" * MIB)
    with pytest.raises(InputError, match=r"1abc\.pdb: has more than 1\.0"):
        read_entry(path, max_bytes=MIB)
