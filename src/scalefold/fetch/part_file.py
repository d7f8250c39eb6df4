"""A file on its way: ``<name>.part``, which gets its final name when it is complete."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from types import TracebackType
from typing import Final

from scalefold.errors import InputError
from scalefold.io.atomic import NO_ROOM
from scalefold.raw.compressed import GZIP_MAGIC, RAISE_LIMIT, too_large, unpacked

REPLACE: Final = "replace it on that mirror, or add another mirror to data.mirrors"


class MirrorError(Exception):
    """A mirror does not give a file: it lacks the file, or it fails, perhaps for a while."""

    def __init__(self, reason: str, is_absent: bool = False, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent
        self.may_pass = may_pass


class Writer:
    """A file opened for writing, whose failures are the user's to fix, not the mirror's."""

    def __init__(self, path: Path, append: bool) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab" if append else "wb")
        except OSError as error:
            raise _write_error(path, error) from error

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except OSError as close_error:
            raise _write_error(self._path, close_error) from close_error

    def write(self, block: bytes) -> None:
        """Append a block."""
        try:
            self._file.write(block)
        except OSError as error:
            raise _write_error(self._path, error) from error


def discard(part: Path) -> None:
    """Delete a part and its stamp."""
    try:
        part.unlink(missing_ok=True)
        part.with_name(part.name + ".validator").unlink(missing_ok=True)
    except OSError as error:
        raise _write_error(part, error) from error


def finish(part: Path, target: Path, source: str, max_unpacked_bytes: int | None = None) -> None:
    """Check a complete part and give it its final name."""
    if target.suffix == ".gz":
        problem = _gzip_problem(part, max_unpacked_bytes)
        if problem:
            discard(part)
            raise MirrorError(f"{source}: {problem}")
    try:
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise _write_error(target, error) from error
    part.with_name(part.name + ".validator").unlink(missing_ok=True)


def _gzip_problem(path: Path, max_bytes: int | None) -> str | None:
    """Return what is wrong with a gzip file, by unpacking it in pieces."""
    num_bytes = 0
    try:
        with path.open("rb") as file:
            start = file.read(12)
            if not start.startswith(GZIP_MAGIC[: len(start)]):
                return f"is not gzipped, it begins with {start!r}: gzip it there, or {REPLACE}"
            file.seek(0)
            for piece in unpacked(file):
                num_bytes += len(piece)
                if max_bytes is not None and num_bytes > max_bytes:
                    return too_large(max_bytes, RAISE_LIMIT)
    except zlib.error as error:
        return f"is not a whole gzip file ({error}): {REPLACE}"
    except EOFError:
        return f"is a truncated gzip file: {REPLACE}"
    return None


def _write_error(path: Path, error: OSError) -> InputError:
    if error.errno in NO_ROOM:
        free = shutil.disk_usage(path.parent).free
        return InputError(
            f"{path}: {error.strerror} ({free} bytes are free). Make room, or raise the quota, and "
            "start again; what is complete is kept."
        )
    return InputError(f"{path}: cannot be written ({error.strerror}). Correct the output folder.")
