"""The raw files that went into shards: each, all in columns, and all as one hash."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Final

import pyarrow as pa
from pydantic import ConfigDict, with_config

from scalefold.config.values import NonNegative


@dataclass(frozen=True)
class SourceFile:
    """A raw file that went into the shards: path below the raw folder, size, SHA-256."""

    path: str
    bytes: int
    sha256: str

    @staticmethod
    def of(raw: Path, path: Path) -> SourceFile:
        """Return the facts of a file below the raw folder."""
        content = path.read_bytes()
        name = path.relative_to(raw).as_posix()
        return SourceFile(name, len(content), hashlib.sha256(content).hexdigest())


_SOURCES: Final = pa.schema(
    [("path", pa.string()), ("bytes", pa.int64()), ("sha256", pa.binary(32))]
)
_AT_A_TIME: Final = 10
"""Rows of a batch that are Python's objects at the same time."""


def source_columns(sources: Iterable[SourceFile]) -> pa.RecordBatch:
    """Return raw files as columns, sorted by path: as objects, those of the PDB would take half a
    gigabyte.
    """
    ordered = sorted(sources, key=attrgetter("path"))
    columns = [
        [source.path for source in ordered],
        [source.bytes for source in ordered],
        [bytes.fromhex(source.sha256) for source in ordered],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SOURCES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SOURCES)


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class RawSnapshot:
    """All raw files at once.

    Parameters
    ----------
    files, bytes
        Number and total size.
    sha256
        Hash over the lines ``<sha256>  <path>``, sorted by path.
    """

    files: NonNegative
    bytes: NonNegative
    sha256: str

    @staticmethod
    def of(sources: Iterable[pa.RecordBatch]) -> RawSnapshot:
        """Return the snapshot of `source_columns`, in any order, repetitions allowed."""
        digest, previous, files, total = hashlib.sha256(), None, 0, 0
        for path, num_bytes, sha256 in heapq.merge(*map(_rows, sources), key=itemgetter(0)):
            if path != previous:
                digest.update(f"{sha256.hex()}  {path}\n".encode())
                files, total, previous = files + 1, total + num_bytes, path
        return RawSnapshot(files, total, digest.hexdigest())


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, int, bytes]]:
    for start in range(0, len(batch), _AT_A_TIME):
        columns = batch.slice(start, _AT_A_TIME).columns
        yield from zip(*(column.to_pylist() for column in columns), strict=True)
