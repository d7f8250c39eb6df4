"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from scalefold.errors import InputError

TEMPORARY_MARK: Final = ".tmp."
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where a disk or a quota is full."""


class HashingFile(io.RawIOBase):
    """Writes to an open file, sequentially, and hashes what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.num_bytes

    def write(self, content: Any) -> int:
        """Write and hash a bytes-like object."""
        self._file.write(content)
        self._sha256.update(content)
        size = memoryview(content).nbytes
        self.num_bytes += size
        return size

    def sync(self) -> None:
        """Write everything through to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; again is no error."""
        if not self.closed:
            self._file.close()
        super().close()

    @property
    def sha256(self) -> str:
        """Hash of everything written so far, hexadecimal."""
        return self._sha256.hexdigest()


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[HashingFile]:
    """Open a file that takes ``path``'s place when the block ends, and only if it ends well.

    Written as ``<name>.tmp.<pid>``, synchronised, renamed, the folder synchronised. After an error
    the temporary file is gone and an earlier file at ``path`` is as it was; after a kill the
    temporary file may remain, which nothing reads.

    Raises
    ------
    InputError
        ``path`` is a folder; the disk or quota is full; or the folder does not exist or may not be
        written.
    """
    _refuse_folder(path)
    temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}")
    try:
        file = HashingFile(temporary.open("wb"))
    except OSError as error:
        raise InputError(_explain(path, error, 0)) from error
    try:
        yield file
        file.sync()
        file.close()
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        # Closing flushes, which fails again if the disk is full.
        with contextlib.suppress(OSError):
            file.close()
        temporary.unlink(missing_ok=True)
        # torch's writer hides the system's error behind one of its own.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError) and _is_about(cause, temporary):
            raise InputError(_explain(path, cause, file.num_bytes)) from error
        raise


def write_bytes(path: Path, content: bytes) -> str:
    """Write a whole file atomically and return its SHA-256 (see :func:`atomic_file`)."""
    with atomic_file(path) as file:
        file.write(content)
        return file.sha256


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path) -> None:
    """Refuse what `atomic_file` could not write, before hours of work; leaves nothing behind.

    Raises
    ------
    InputError
        ``path`` is a folder, or the folder that it is to be in does not exist or takes no file.
    """
    _refuse_folder(path)
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputError(_explain(path, error, 0)) from error


def make_folder(folder: Path) -> None:
    """Make an output folder and those above it, unless they exist.

    Raises
    ------
    InputError
        It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made ({error.strerror}). Choose another output folder, or make "
            "room and permission for this one."
        ) from error


def check_writable(folder: Path, key: str) -> None:
    """Refuse an output folder that could not be made or written to; leaves nothing behind.

    It tries to write a file: permissions do not tell what every file system accepts (``/proc``, for
    example).

    Parameters
    ----------
    folder
        The file is tried in it, or in the nearest existing folder above it.
    key
        Names it in errors.

    Raises
    ------
    InputError
        The folder, or the nearest above, is no folder or takes no file.
    """
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if there.is_dir():
        try:
            tempfile.TemporaryFile(dir=there).close()
            return
        except OSError as error:
            problem = f"takes no file ({error.strerror})"
    else:
        problem = "is no folder"
    raise InputError(
        f"{key}: {folder} cannot be made or written, since {there.absolute()} {problem}. Choose "
        "another folder, or fix this one"
    )


def sync_folder(folder: Path) -> None:
    """Write a folder's entries (names, renames) through to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_about(error: OSError, file: Path) -> bool:
    """Whether an error is about writing this file, not about another that is read meanwhile."""
    # Writing itself names no file.
    name = error.filename
    return name is None or Path(os.fsdecode(name)) in (file, file.parent)


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: is a folder, and a file is to be written: name one")


def _explain(path: Path, error: OSError, num_bytes: int) -> str:
    if error.errno in NO_ROOM:
        free = shutil.disk_usage(path.parent).free
        return (
            f"{path}: no room ({error.strerror}) after {num_bytes:,} bytes; {free:,} bytes are "
            "free. Nothing half-written remains and earlier files are intact: make room, raise "
            "the quota or choose another folder, and run the same command again, `train` with "
            "--resume."
        )
    return (
        f"{path}: cannot be written ({error.strerror}). Create the folder {path.parent}, make it "
        "writable, or choose another one."
    )
