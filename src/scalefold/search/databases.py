"""Which database a search was made in: a renewed database has the same path and other content."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import xxhash

from scalefold.config.search import SearchStepConfig
from scalefold.search.ffindex import index_file
from scalefold.search.hhsuite import database_part

logger = logging.getLogger(__name__)

_PARTS: Final = ("a3m", "ca3m", "hhm", "cs219")
_ENDS_BYTES: Final = 1 << 20


class Databases:
    """The databases of a search's steps, each with a mark that changes with its content.

    A mark is a hash of size, beginning and end of the database's index, or of its file of
    sequences. This is quick for a terabyte, and the same for a copy on another disk. A missing
    database has no mark.
    """

    def __init__(self, steps: Iterable[SearchStepConfig]) -> None:
        self._marks: dict[str, str] = {}
        self._said: set[str] = set()
        for step in steps:
            for database in step.databases:
                files = [path for path in _telling_files(step.tool, database) if path.is_file()]
                if files:
                    self._marks[str(database)] = " ".join(map(_mark, files))

    def of(self, steps: Iterable[SearchStepConfig]) -> dict[str, str]:
        """Return the marks of the databases of some of the steps, by path."""
        paths = {str(database) for step in steps for database in step.databases}
        return {path: mark for path, mark in self._marks.items() if path in paths}

    def are_renewed(self, then: Mapping[str, str], name: str) -> bool:
        """Return whether a database had another mark when ``name`` was searched; warn once."""
        renewed = {path for path, mark in then.items() if self._marks.get(path, mark) != mark}
        for path in renewed - self._said:
            logger.warning(
                "The database %s changed since %s was searched; earlier results will be searched "
                "again. To keep them, stop and restore the old database",
                path,
                name,
            )
        self._said |= renewed
        return bool(renewed)


def _telling_files(tool: str, database: Path) -> list[Path]:
    if tool in ("hhblits", "hhsearch"):
        return [index_file(database_part(database, part)) for part in _PARTS]
    if tool.startswith("mmseqs"):
        return [database.with_name(f"{database.name}.index")]
    return [database]


def _mark(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        state = xxhash.xxh3_64()
        for start in (0, max(0, size - _ENDS_BYTES)):
            file.seek(start)
            state.update(file.read(_ENDS_BYTES))
    return f"{size}:{state.hexdigest()}"
