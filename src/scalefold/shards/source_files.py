"""The raw files that went into shards: each, all in columns, and all as one hash."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
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
_LINES: Final = 10_000


def source_columns(sources: Collection[SourceFile]) -> pa.RecordBatch:
    """Return raw files as columns: as objects, those of the PDB would take half a gigabyte."""
    columns = [
        [source.path for source in sources],
        [source.bytes for source in sources],
        [bytes.fromhex(source.sha256) for source in sources],
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
    def of(sources: Sequence[pa.RecordBatch]) -> RawSnapshot:
        """Return the snapshot of `source_columns`, in any order, repetitions allowed."""
        table = pa.Table.from_batches(sources, _SOURCES).combine_chunks()
        order = pc.sort_indices(table["path"])
        digest, previous, files, total = hashlib.sha256(), None, 0, 0
        for start in range(0, len(order), _LINES):
            columns = table.take(order[start : start + _LINES]).columns
            for path, num_bytes, sha256 in zip(*(c.to_pylist() for c in columns), strict=True):
                if path != previous:
                    digest.update(f"{sha256.hex()}  {path}\n".encode())
                    files, total, previous = files + 1, total + num_bytes, path
        return RawSnapshot(files, total, digest.hexdigest())
