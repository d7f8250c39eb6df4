"""One Arrow file on disk: opening, and rows that are checked as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from scalefold.errors import ChecksumError, InputError, UnreadableError
from scalefold.shards.repack_hint import repack_hint
from scalefold.shards.schema import (
    FAMILY_VERSIONS,
    HASH_COLUMN,
    SCHEMAS,
    readable_schema,
    row_hash,
    schema_family,
    schema_version,
)


class ShardFile:
    """A memory-mapped file of one family.

    Parameters
    ----------
    family
        What it should be: a key of :data:`~scalefold.shards.schema.SCHEMAS`.

    Raises
    ------
    InputError
        No such file, not an Arrow file (truncated, for instance), another family, or another
        version of the schema; as `UnreadableError` where a permission is missing.
    """

    def __init__(self, path: Path, family: str) -> None:
        self.path = path
        self.family = family
        try:
            self._map = pa.memory_map(str(path))
            self._reader = pa.ipc.open_file(self._map)
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such shard. {repack_hint(path)}") from error
        except PermissionError as error:
            raise UnreadableError.of(path) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(
                f"{path}: not a complete Arrow file ({error}). {repack_hint(path)}"
            ) from error
        self._check_schema()

    @property
    def num_rows(self) -> int:
        """Number of rows of a data shard (one a record batch)."""
        return self._reader.num_record_batches

    def row(self, number: int, chain_key: str | None = None) -> pa.RecordBatch:
        """Return one row of a data shard, after checking its hash.

        ``chain_key`` names the chain that asks, in errors.

        Raises
        ------
        InputError
            There is no such row.
        ChecksumError
            The row is not what was written.
        """
        where = f"{self.path}, row {number}" + (f", chain {chain_key}" if chain_key else "")
        if not 0 <= number < self.num_rows:
            raise InputError(
                f"{where}: the file has {self.num_rows} rows. Index and shard do not belong "
                "together: run `scalefold pack` again."
            )
        try:
            batch = self._reader.get_batch(number)
            if batch.num_rows != 1:
                raise pa.ArrowInvalid(f"record batch of {batch.num_rows} rows, expected 1")
            # Offsets are checked before anything follows them.
            batch.validate(full=True)
            stated, found = batch.column(HASH_COLUMN)[0].as_py(), row_hash(batch)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ChecksumError(
                f"{where}: damaged, cannot be read as Arrow ({error}). {repack_hint(self.path)}"
            ) from error
        if stated != found:
            raise ChecksumError(
                f"{where}: damaged, xxh3 of the row is {found:016x}, {stated:016x} was written. "
                f"{repack_hint(self.path)}"
            )
        return batch

    def table(self) -> pa.Table:
        """Return the whole file as a table (for the index)."""
        try:
            table = self._reader.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ChecksumError(
                f"{self.path}: damaged ({error}). {repack_hint(self.path)}"
            ) from error
        return table

    def scan(self, column: str, rows: Iterable[int] | None = None) -> Iterator[pa.Array]:
        """Give one column of each row, an array of one, without reading the others.

        The rows' hashes are not checked: for counts, and for what the caller checks.

        Parameters
        ----------
        rows
            Numbers of the rows; default: all.

        Raises
        ------
        ChecksumError
            A row cannot be read.
        """
        only = pa.ipc.IpcReadOptions(included_fields=[self._reader.schema.names.index(column)])
        try:
            reader = pa.ipc.open_file(self._map, options=only)
            for number in range(reader.num_record_batches) if rows is None else rows:
                array = reader.get_batch(number).column(0)
                array.validate(full=True)
                yield array
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ChecksumError(
                f"{self.path}: damaged ({error}). {repack_hint(self.path)}"
            ) from error

    def close(self) -> None:
        """Close the map."""
        self._map.close()

    def _check_schema(self) -> None:
        schema, fix = self._reader.schema, "Run `scalefold pack` again, with this version."
        version, family = schema_version(schema), schema_family(schema)
        if version is None or family is None:
            raise InputError(f"{self.path}: an Arrow file, but not a ScaleFold shard. {fix}")
        expected = readable_schema(self.family, version)
        if family == self.family and expected is None:
            raise InputError(
                f"{self.path}: schema version {version}, this version of scalefold reads "
                f"{FAMILY_VERSIONS[self.family]}. {fix}"
            )
        expected = expected or SCHEMAS[self.family]
        if family != self.family or not schema.equals(expected):
            raise InputError(
                f"{self.path}: holds {family} rows, or rows of other columns; expected "
                f"{self.family} rows {expected.names}. {fix}"
            )
