"""Alignments given in place of a search: a3m, Stockholm, or ColabFold's a3m."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scalefold.errors import InputError, UnreadableError
from scalefold.search.a3m import read_stockholm, stockholm_to_a3m

ENDINGS: Final = (".a3m", ".sto")


def find_given(folder: Path, name: str) -> Path | None:
    """Return the file of an alignment in a folder, ``None`` if it has none."""
    paths = (folder / f"{name}{ending}" for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def read_given(path: Path) -> bytes:
    """Return the a3m of a file; ColabFold's loses the NUL at its end.

    Raises
    ------
    InputError
        The file cannot be read, or is named Stockholm and is not.
    """
    try:
        if path.suffix == ".sto":
            with path.open("rb") as lines:
                return stockholm_to_a3m(read_stockholm(lines, str(path)))
        return path.read_bytes().rstrip(b"\0")
    except PermissionError as error:
        raise UnreadableError.of(path) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Correct the path") from error
