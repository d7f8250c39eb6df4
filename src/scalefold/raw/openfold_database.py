"""Alignments of OpenFold's databases: large files, and an index in JSON.

For each chain, the index names a database, and files in it by offset and size: ``{"1abc_A": {"db":
"0.db", "files": [["uniref90_hits.a3m", 0, 51234], ...]}}``. Identical chains have the same place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scalefold.io.atomic import make_folder, write_bytes
from scalefold.raw.chain_key import is_chain_key
from scalefold.raw.json_items import json_items

_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.(a3m|hhr)")
_DATABASE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")


def database_indices(folder: Path) -> list[Path]:
    """Return the index files in a folder: ``super.index`` alone if it is there, else all."""
    whole = folder / "super.index"
    return [whole] if whole.is_file() else sorted(folder.glob("*.index"))


def unpack_database(indices: list[Path], out: Path) -> Iterator[str | None]:
    """Write the files of each chain to ``out/pdb/<chain>/{a3m,hhr}/``, as OpenProteinSet has them.

    Of identical chains, which have the same place, the first gets the files. A file that exists
    with the right size stays.

    Yields
    ------
    str or None
        For each chain, why some of its files were skipped; None if none was.

    Raises
    ------
    InputError
        An index is not readable as such, or a file cannot be written.
    """
    places: set[tuple[str, int]] = set()
    for index in indices:
        for chain_key, item in json_items(index):
            try:
                _unpack(chain_key, item, index.parent, out, places)
            except _PassedOverError as reason:
                yield f"{chain_key[:80]!r}: {reason}"
            else:
                yield None


class _PassedOverError(Exception):
    """Files of a chain are skipped."""


def _unpack(
    chain_key: str, item: dict[str, Any], folder: Path, out: Path, places: set[tuple[str, int]]
) -> None:
    if not is_chain_key(chain_key):
        raise _PassedOverError("no name of a chain such as 1abc_A")
    name, files = item.get("db"), item.get("files")
    if not (isinstance(name, str) and _DATABASE.fullmatch(name) and isinstance(files, list)):
        raise _PassedOverError("names no database of its folder, or no files")
    database = folder / name
    if not database.is_file():
        raise _PassedOverError(f"{database} is not there")
    size = database.stat().st_size
    others = []
    with database.open("rb") as content:
        for file in files:
            kind = _kind(file, size)
            if kind is None:
                others.append(str(file)[:80])
                continue
            start, length = file[1], file[2]
            if (name, start) in places and length:
                continue
            places.add((name, start))
            target = out / "pdb" / chain_key / kind / file[0]
            if not (target.is_file() and target.stat().st_size == length):
                make_folder(target.parent)
                write_bytes(target, os.pread(content.fileno(), length, start))
    if others:
        raise _PassedOverError(
            f"neither a3m nor hhr, or not within {database}: {', '.join(others)}"
        )


def _kind(file: object, size: int) -> str | None:
    """Return the ending of a file of the index, ``None`` if it is not one to take."""
    match file:
        case [str(name), int(start), int(length)] if 0 <= start <= start + length <= size:
            named = _FILE.fullmatch(name)
            return named[1] if named else None
        case _:
            return None
