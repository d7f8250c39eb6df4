"""The table of the files that fetch got: ``fetched.tsv``, of its buckets ``fetched-<...>.tsv``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from scalefold.errors import InputError
from scalefold.fetch.mirrors import FetchedFile
from scalefold.raw.table import read_table, write_table

Kind = Literal["structures", "alignments"]
"""mmCIF files; or alignments and template hits."""

FETCHED_COLUMNS: Final = ("path", "bytes", "sha256", "source")


def table_tag(only: Kind | None, bucket: int | None) -> str:
    """Return what the tables of one fetch have in their names: ``-structures-00007``, say."""
    return ("" if only is None else f"-{only}") + ("" if bucket is None else f"-{bucket:05d}")


def update_fetched(path: Path, files: Mapping[Path, FetchedFile]) -> None:
    """Update a table. Rows of other files stay if these exist.

    The row of an unchanged file stays as well: it names the file's source. A later run that finds
    the file can only name the mirror that it would ask now.
    """
    raw = path.parent
    rows = {row[0]: row for row in _read(path) if (raw / row[0]).exists()}
    for local, file in files.items():
        name = local.relative_to(raw).as_posix()
        row = [name, str(file.num_bytes), file.sha256, file.source]
        if name not in rows or rows[name][:-1] != row[:-1]:
            rows[name] = row
    write_table(path, FETCHED_COLUMNS, [rows[name] for name in sorted(rows)])


def check_raw(raw: Path) -> None:
    """Refuse a missing folder, and one that nothing was fetched into.

    Raises
    ------
    InputError
        It has neither a folder ``mmcif`` nor a table of fetched files.
    """
    if not (raw / "mmcif").is_dir() and not any(raw.glob("fetched*.tsv")):
        found = "nothing was fetched into it" if raw.is_dir() else "no such raw folder"
        raise InputError(
            f"{raw}: {found}. Run `scalefold fetch`, and give the folder that was its --out."
        )


class FetchRecord:
    """What fetch got, which a stage of packing compares with the files.

    A raw folder that was made by hand has no tables, and passes all checks.

    Parameters
    ----------
    needed
        Files below it that will be read if they exist.
    kind, bucket
        Which tables count: those of this kind or of all kinds, of this bucket or of all buckets.
    """

    def __init__(self, raw: Path, needed: Iterable[Path], kind: Kind, bucket: int) -> None:
        tags = [table_tag(k, b) for k in (kind, None) for b in (bucket, None)]
        names = {path.relative_to(raw).as_posix(): path for path in needed}
        self._kind = kind
        self._files: dict[Path, list[_Listed]] = {}
        for table in (raw / f"fetched{tag}.tsv" for tag in tags):
            for name, num_bytes, sha256, _ in _read(table):
                if name in names:
                    listed = _Listed(table.name, num_bytes, sha256)
                    self._files.setdefault(names[name], []).append(listed)

    def check_presence(self) -> None:
        """Raise an InputError if a table lists a needed file that is not there."""
        lost = [path for path in self._files if not path.is_file()]
        if lost:
            more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
            raise InputError(
                f"{lost[0]}{more}: fetch had got it, as {self._files[lost[0]][0].table} says, but "
                f"it is gone. Fetch it again: {self._command}."
            )

    def check_content(self, path: Path, num_bytes: int, sha256: str) -> None:
        """Raise an InputError if tables list a file, but none with this size and SHA-256.

        One table is enough, since others may be of an earlier fetch.
        """
        listed = self._files.get(path, [])
        if listed and not any(row[1:] == (str(num_bytes), sha256) for row in listed):
            raise InputError(
                f"{path}: not what fetch got: {num_bytes} bytes, sha256 {sha256[:12]}; "
                f"{listed[0].table} states {listed[0].num_bytes} bytes, sha256 "
                f"{listed[0].sha256[:12]}. Delete it and fetch it again: {self._command}."
            )

    @property
    def _command(self) -> str:
        return (
            "`scalefold fetch` with the same --only and --bucket, in the workflow the same "
            f"`snakemake` command with `-R fetch_{self._kind}`"
        )


class _Listed(NamedTuple):
    """A file in a table, by the table's name; the number of bytes as it is written there."""

    table: str
    num_bytes: str
    sha256: str


def _read(table: Path) -> list[Sequence[str]]:
    """Return the rows of a table, none if there is no such file."""
    if not table.exists():
        return []
    return [fields for _, fields in read_table(table, FETCHED_COLUMNS)]
