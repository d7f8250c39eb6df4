"""The table of the files that fetch got: ``fetched.tsv``, of its buckets ``fetched-<...>.tsv``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from scalefold.errors import InputError
from scalefold.raw.chains import read_table, write_table
from scalefold.raw.mirrors import FetchedFile

Kind = Literal["structures", "alignments"]
"""mmCIF files; or alignments and template hits."""

FETCHED_COLUMNS: Final = ("path", "bytes", "sha256", "source")


def table_tag(only: Kind | None, bucket: int | None) -> str:
    """Return what the tables of one fetch have in their names: ``-structures-00007``, say."""
    return ("" if only is None else f"-{only}") + ("" if bucket is None else f"-{bucket:05d}")


def update_fetched(path: Path, files: Mapping[Path, FetchedFile]) -> None:
    """Bring a table up to date; rows of files that other runs fetched stay, if these are there.

    So does the row of a file that is the same as before: it says where the file came from, while a
    later run, which finds it there, can only say where it would ask now.
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
    """Refuse a folder that is not there, or that nothing was fetched into.

    Raises
    ------
    InputError
        There is neither a folder ``mmcif`` below it nor a table of what was fetched.
    """
    if not (raw / "mmcif").is_dir() and not any(raw.glob("fetched*.tsv")):
        found = "nothing was fetched into it" if raw.is_dir() else "no such raw folder"
        raise InputError(
            f"{raw}: {found}. Run `scalefold fetch`, and give the folder that was its --out."
        )


def check_fetched(raw: Path, needed: Iterable[Path], kind: Kind, bucket: int) -> None:
    """Refuse a raw folder that has lost files since they were fetched.

    Parameters
    ----------
    raw
        Raw folder. One that was laid out by hand has no tables, and passes.
    needed
        Files below it that will be read if they are there.
    kind, bucket
        Which of the tables count: those of this kind and bucket, and of fetches of all kinds or
        all buckets.

    Raises
    ------
    InputError
        A table lists a needed file that is not there.
    """
    tags = [table_tag(k, b) for k in (kind, None) for b in (bucket, None)]
    tables = [raw / f"fetched{tag}.tsv" for tag in tags]
    table_of = {row[0]: table for table in tables for row in _read(table)}
    names = {path: path.relative_to(raw).as_posix() for path in needed}
    lost = [path for path, name in names.items() if name in table_of and not path.is_file()]
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise InputError(
            f"{lost[0]}{more}: fetch had got it, as {table_of[names[lost[0]]].name} says, but it "
            "is gone. Fetch it again: `scalefold fetch` with the same --only and --bucket, in the "
            f"workflow `snakemake --profile local -R fetch_{kind}`."
        )


def _read(table: Path) -> list[Sequence[str]]:
    """Return the rows of a table, none if there is no such file."""
    if not table.exists():
        return []
    return [fields for _, fields in read_table(table, FETCHED_COLUMNS)]
