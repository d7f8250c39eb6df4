"""Write one shard: rows one by one, hashed while they are written, published atomically."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import ConfigDict, with_config

from scalefold.config.values import NonNegative
from scalefold.io.atomic import HashingFile, atomic_file
from scalefold.shards.codec import encode_chain, encode_msa
from scalefold.shards.records import ChainRecord, MsaRecord
from scalefold.shards.schema import SCHEMAS

Compression = Literal["none", "lz4", "zstd"]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class ShardFacts:
    """A manifest's entry of a file: name without folder, size, hexadecimal hash."""

    file: str
    bytes: NonNegative
    rows: NonNegative
    sha256: str


class ShardWriter:
    """Takes the rows of one shard (see :func:`write_shard`)."""

    def __init__(self, path: Path, file: HashingFile, stream: pa.ipc.RecordBatchFileWriter) -> None:
        self._path = path
        self._file = file
        self._stream = stream
        self._rows = 0

    def add(self, record: ChainRecord | MsaRecord) -> int:
        """Append a record as one record batch and return its row number.

        Raises
        ------
        InputError
            The record is not consistent (see :mod:`scalefold.shards.codec`); the shard goes on
            without it.
        """
        self.add_batch(
            encode_chain(record) if isinstance(record, ChainRecord) else encode_msa(record)
        )
        return self._rows - 1

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append an encoded batch."""
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    @property
    def facts(self) -> ShardFacts:
        """Size and hash; complete once the block of :func:`write_shard` has ended."""
        return ShardFacts(self._path.name, self._file.num_bytes, self._rows, self._file.sha256)


@contextlib.contextmanager
def write_shard(
    path: Path, family: str, compression: Compression = "none"
) -> Iterator[ShardWriter]:
    """Open a shard for writing; it appears at ``path`` when the block ends well.

    The same rows give the same bytes.

    Raises
    ------
    InputError
        There is no room, or the folder cannot be written. What was at ``path`` before is intact.
    """
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with atomic_file(path) as file:
        # Not a with block: on an error the footer must not be tried, the file is dropped.
        stream = pa.ipc.new_file(file, SCHEMAS[family], options=options)
        yield ShardWriter(path, file, stream)
        stream.close()
