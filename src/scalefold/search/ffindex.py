"""HH-suite's databases of many small files: ``<prefix>.ffdata`` and ``<prefix>.ffindex``.

The data are the entries one after another, each followed by a NUL byte. Entries of column states
have other NUL bytes as well. The index has one line an entry, sorted by name: name, first byte,
number of bytes with the NUL.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from scalefold.errors import InputError
from scalefold.io.atomic import atomic_file

LONGEST_NAME: Final = 31
"""Bytes. HH-suite's programs cut longer names off, and then find no entry."""
_NUMBER: Final = re.compile(rb"[0-9]{1,18}")


def data_file(prefix: Path) -> Path:
    """Return the path of a database's entries."""
    return prefix.with_name(f"{prefix.name}.ffdata")


def index_file(prefix: Path) -> Path:
    """Return the path of a database's index."""
    return prefix.with_name(f"{prefix.name}.ffindex")


class _Extent(NamedTuple):
    """Where an entry is; its number of bytes includes the NUL."""

    start: int
    num_bytes: int


class FFIndex:
    """The entries of a database by name, read from the mapped file when they are asked for.

    Parameters
    ----------
    prefix
        Path of the two files without their endings.

    Raises
    ------
    InputError
        A file is missing or empty, or a line of the index is malformed or names bytes that the
        data do not have.
    """

    def __init__(self, prefix: Path) -> None:
        self._path = data_file(prefix)
        check_files(prefix)
        with self._path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._places = dict(_read_index(index_file(prefix), len(self._data)))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the index's order."""
        return iter(self._places)

    def __contains__(self, name: object) -> bool:
        """Return whether there is an entry of this name."""
        return name in self._places

    def num_bytes(self, name: str) -> int:
        """Return the size of an entry without its NUL."""
        return self._place(name).num_bytes - 1

    def __getitem__(self, name: str) -> bytes:
        """Return an entry without its NUL.

        Raises
        ------
        InputError
            There is no such entry, or it does not end with a NUL.
        """
        start, num_bytes = self._place(name)
        content = self._data[start : start + num_bytes]
        if content[-1:] != b"\0":
            raise InputError(
                f"{self._path}: entry {name} does not end with a NUL byte. Index and data do not "
                "belong together: build the database again"
            )
        return content[:-1]

    def _place(self, name: str) -> _Extent:
        try:
            return self._places[name]
        except KeyError:
            raise InputError(
                f"{self._path}: no entry {name!r} among {len(self)}. Correct the name"
            ) from None


def check_files(prefix: Path) -> None:
    """Refuse a database with a missing or empty file.

    Raises
    ------
    InputError
        Names the file.
    """
    for path in (data_file(prefix), index_file(prefix)):
        if not path.is_file():
            raise InputError(f"{path}: no such file. Correct the database's path, or build it")
        if path.stat().st_size == 0:
            raise InputError(f"{path}: is empty. Download or build the database again")


def write_ffindex(prefix: Path, entries: Iterable[tuple[str, bytes]]) -> int:
    """Write a database, and return its number of entries. The index appears last.

    Parameters
    ----------
    prefix
        Path of the two files without their endings.
    entries
        Names and contents, in the order in which the data are written.

    Raises
    ------
    InputError
        A name is not valid, or given twice; or there is no entry.
    """
    places: dict[bytes, _Extent] = {}
    index = index_file(prefix)
    index.unlink(missing_ok=True)  # an earlier index does not fit the new data
    with atomic_file(data_file(prefix)) as file:
        for name, content in entries:
            encoded = checked_name(name)
            if encoded in places:
                raise InputError(f"{prefix}: two entries are named {name!r}. Rename one of them")
            places[encoded] = _Extent(file.num_bytes, len(content) + 1)
            file.write(content + b"\0")
        if not places:
            raise InputError(f"{prefix}: there is no entry to write, and an empty database is none")
    with atomic_file(index) as file:
        for encoded, place in sorted(places.items()):
            file.write(b"%s\t%d\t%d\n" % (encoded, *place))
    return len(places)


def checked_name(name: str) -> bytes:
    """Return the bytes of an entry's name.

    Raises
    ------
    InputError
        It is empty, too long or not printable.
    """
    encoded = name.encode()
    if not 0 < len(encoded) <= LONGEST_NAME or not name.isprintable() or name.strip() != name:
        raise InputError(
            f"{name!r} cannot name an entry of an HH-suite database, which has at most "
            f"{LONGEST_NAME} printable characters: rename it"
        )
    return encoded


def _read_index(path: Path, num_data_bytes: int) -> Iterator[tuple[str, _Extent]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip(b"\n").split(b"\t")
            if len(fields) != 3 or not all(map(_NUMBER.fullmatch, fields[1:])):
                raise InputError(
                    f"{path}, line {number}: {line[:60]!r}, expected a name and two numbers with "
                    "tabs between. Download or build the database again"
                )
            place = _Extent(int(fields[1]), int(fields[2]))
            if place.num_bytes < 1 or place.start + place.num_bytes > num_data_bytes:
                raise InputError(
                    f"{path}, line {number}: {place.num_bytes} bytes from {place.start}, the data "
                    f"have {num_data_bytes}. A file is cut off: download or build the database "
                    "again"
                )
            yield fields[0].decode("utf-8", "replace"), place
