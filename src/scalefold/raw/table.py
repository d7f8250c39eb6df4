"""Tables of text, whose columns are separated by tabs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scalefold.errors import InputError
from scalefold.io.atomic import make_folder, write_bytes


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of a tab-separated table whose header must be ``columns``.

    Raises
    ------
    InputError
        No such file or none of text, another header, a line of another number of fields, or a
        field with a space at an end.
    """
    lines = _lines(path)
    header = next(lines, "")
    if header.split("\t") != list(columns):
        found = f"the first line is {header[:80]!r}" if header else "the first line is empty"
        hint = _other_separator(header) if header.startswith(columns[0]) else ""
        raise InputError(
            f"{path}: {found}, expected the tab-separated header {' '.join(columns)}.{hint}"
        )
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(columns):
            raise InputError(
                f"{path}, line {number}: {len(fields)} tab-separated fields, expected "
                f"{len(columns)} ({', '.join(columns)})."
                + (_other_separator(line) or " An empty last field still needs its tab.")
            )
        if " \t" in line or "\t " in line or " " in (line[0], line[-1]):
            raise InputError(
                f"{path}, line {number}: a field of {fields} begins or ends with a space, which "
                "would be a part of it. Remove the space."
            )
        yield number, fields


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file one by one: those of the PDB's list would take 70 MB."""
    try:
        with path.open(encoding="utf-8-sig") as file:  # Excel writes a byte order mark
            for line in file:
                yield line.removesuffix("\n")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. Create it, or correct the path.") from error
    except UnicodeDecodeError as error:
        fix = "Unpack it" if path.suffix == ".gz" else "Name another file"
        raise InputError(f"{path}: is no text, expected a table of text. {fix}.") from error
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}). Name another file."
        ) from error


def _other_separator(line: str) -> str:
    """Return a hint, where a line of a table has something else between its fields than tabs."""
    names = {" ": "spaces", ",": "commas", ";": "semicolons"}
    found = next((name for sign, name in names.items() if sign in line.strip()), None)
    if found is None or "\t" in line:
        return ""
    return f" It has {found} where tabs belong: replace them."


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a tab-separated table with a header, atomically.

    Raises
    ------
    InputError
        The disk is full, or the folder cannot be made or written; an earlier table stays.
    """
    make_folder(path.parent)
    write_bytes(path, table_text(columns, rows).encode())


def table_text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as `read_table` reads it; tabs and line breaks in a field become spaces."""
    lines = ("\t".join(" ".join(field.split()) for field in row) for row in (columns, *rows))
    return "".join(line + "\n" for line in lines)
