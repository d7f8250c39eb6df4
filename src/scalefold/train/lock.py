"""One writer for a checkpoint folder.

A POSIX record lock: it goes when its process goes, however that ends; child processes do not
inherit it; it works over NFS. The file stays and says who holds, or last held, the lock.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scalefold.errors import InputError

LOCK_FILE: Final = "training.lock"


@contextlib.contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if need be.

    Raises
    ------
    InputError
        If another process holds it: says which, on which host, since when. Or if the folder cannot
        be written.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}): make the folder writable, or choose "
            "another one"
        ) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
            raise InputError(
                f"{folder}: another training writes here ({holder or 'unknown process'}). Wait for "
                "it, stop it, or choose another folder; the lock ends with its process, deleting "
                f"{LOCK_FILE} does not help"
            ) from None
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = f"process {os.getpid()} on {socket.gethostname()}, since {started}\n"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
        yield
    finally:
        os.close(descriptor)
