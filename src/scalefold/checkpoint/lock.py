"""One writer for a training run's folder, on any node of a cluster.

Locks of the kernel (flock, fcntl) are not enough. On Lustre with ``localflock`` and on BeeGFS they
do not reach other nodes, on NFS 3 the lock of a dead node stays, and some mounts refuse them. This
lock is made of files. It needs two promises, which every shared file system gives. If several
processes create a file exclusively, one succeeds. A process that opens a file sees what was
synchronised before.

``lock/<number>`` names a holder. The highest number holds the folder, and rewrites a sign of life
in its file every few seconds, until it gives the folder back and deletes the file. Another process
makes the next number

- if the holder ran on this machine and is gone, which is seen at once: its socket is closed,
- or if its sign of life did not change for a minute by the watcher's own clock. Clocks of nodes
  are never compared.

The new one then looks at the former again, and steps back if that has come back to life. A holder
that was frozen for a minute finds that the newest file is not its own, just before a checkpoint
appears, and ends. Nobody has to delete a lock by hand.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from scalefold.errors import InputError
from scalefold.io.atomic import check_writable, make_folder

logger = logging.getLogger(__name__)

LOCK_FOLDER: Final = "lock"
TRAINING_LOG: Final = "training.log"
"""Log of a training run, which the workflow writes beside the lock before training begins, too."""
FAILED_MARK: Final = "training.failed"
"""Made by the workflow when training on this machine has failed, removed when it starts again."""
BEAT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""A holder without a sign of life for this time counts as dead. It is longer than file systems need
to recover.
"""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")


def sign_of_life(folder: Path) -> str:
    """Return what the holder of a folder's lock wrote last; it changes while the holder is alive.

    Returns
    -------
    str
        The number of the lock, the holder, its socket, its last beat: a line each. Empty where
        there is no lock.
    """
    return _look(folder / LOCK_FOLDER)


@contextlib.contextmanager
def writer_lock(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a folder. Taking it waits a minute at most, if its holder seems dead.

    Parameters
    ----------
    folder : Path
        Made if need be.

    Yields
    ------
    callable
        Makes sure that the lock is still held, and raises InputError if another process has taken
        it over. To be called just before a checkpoint appears.

    Raises
    ------
    InputError
        If another process holds it: says which, on which host, since when. Or if the folder cannot
        be written.
    """
    files = folder / LOCK_FOLDER
    check_writable(files, "training")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        name = f"scalefold-{uuid.uuid4()}"
        end.bind(f"\0{name}")  # in no folder, and gone with this process
        since = datetime.now(UTC).isoformat(timespec="seconds")
        process = f"process {os.getpid()} on {socket.gethostname()}, since {since}"
        holder = f"{process}\n{_machine()} {name}\n"
        file = _take(files, holder)
        released = threading.Event()

        def keep_beating() -> None:
            while not released.wait(BEAT_SECONDS):
                try:
                    _beat(file, holder)
                except OSError as error:
                    logger.warning("%s: no sign of life could be written: %s", files, error)

        def confirm() -> None:
            try:
                _beat(file, holder)
            finally:  # refused, perhaps, since another node has deleted the file
                if not _is_newest(files, holder):
                    raise InputError(
                        f"{folder}: another training run has taken over here "
                        f"({_holder(_look(files))}), since this one did not respond for "
                        f"{SILENCE_SECONDS:g} s. This one ends and leaves the checkpoints to it"
                    )

        beating = threading.Thread(target=keep_beating, name="lock", daemon=True)
        beating.start()
        try:
            yield confirm
        finally:
            released.set()
            beating.join()
            file.close()
            with contextlib.suppress(OSError):  # another has just come, or the disk is gone
                if _is_newest(files, holder):
                    Path(file.name).unlink()
                files.rmdir()


def _take(files: Path, holder: str) -> BinaryIO:
    """Make the next number when the holder before is gone, or was silent for a minute."""
    watched, deadline = "", 0.0
    while True:
        make_folder(files)
        newest = _look(files)
        gone = _has_ended(newest)
        if gone is None and not watched:
            waiting = "%s: held by %s; waiting up to %g s for a sign of life"
            logger.info(waiting, files.parent, _holder(newest), SILENCE_SECONDS)
            watched, deadline = newest, time.monotonic() + SILENCE_SECONDS
        elif not gone and newest != watched:
            raise InputError(
                f"{files.parent}: another training run writes here ({_holder(newest)}). Wait for "
                "it, stop it, or choose another folder. A dead one loses the lock by itself: "
                f"deleting {LOCK_FOLDER}/ is no help"
            )
        elif (gone or time.monotonic() > deadline) and (file := _make_after(newest, files, holder)):
            if not gone:
                silent = "%s: no sign of life from %s, taken over"
                logger.warning(silent, files.parent, _holder(newest))
            return file
        time.sleep(min(1.0, SILENCE_SECONDS / 10))


def _make_after(former: str, files: Path, holder: str) -> BinaryIO | None:
    """Make the next number; None if it is another's, or if the former is back to life."""
    number = int(former.partition("\n")[0] or 0)
    path = files / str(number + 1)
    try:
        file = path.open("xb", buffering=0)
        _beat(file, holder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOENT, errno.ESTALE):
            raise
        return None  # the number is just taken, or the folder or the file just deleted
    if _is_newest(files, holder) and _look(files, number) == former:
        for older in _numbers(files):
            if older <= number:
                (files / str(older)).unlink(missing_ok=True)
        return file
    file.close()
    path.unlink(missing_ok=True)
    return None


def _look(files: Path, number: int | None = None) -> str:
    """What the file of a number says, by default of the highest, after the number itself."""
    if number is None:
        number = max(_numbers(files), default=0)
    with contextlib.suppress(FileNotFoundError):
        return f"{number}\n{(files / str(number)).read_text('utf-8', 'backslashreplace')}"
    return ""


def _numbers(files: Path) -> list[int]:
    # On NFS, a file that is deleted while open stays as .nfs….
    return [int(path.name) for path in files.glob("[0-9]*") if path.name.isdecimal()]


def _holder(sign: str) -> str:
    """The holder, for messages."""
    return "".join(sign.splitlines()[1:2]) or "an unknown process"


def _has_ended(sign: str) -> bool | None:
    """Whether the holder is gone; None if that cannot be seen from here."""
    if not sign or sign.rstrip().endswith("given back"):  # by earlier versions
        return True
    machine, _, name = "".join(sign.splitlines()[2:3]).rpartition(" ")
    if machine != _machine():
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        answer = probe.connect_ex(f"\0{name}")
    return {0: False, errno.ECONNREFUSED: True}.get(answer)


def _machine() -> str:
    """Where sockets find each other: a system since its start, and there a network namespace."""
    return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()}"


def _is_newest(files: Path, holder: str) -> bool:
    """Whether the newest file is this process's, though a number may have been made again."""
    return _look(files).partition("\n")[2].startswith(holder)


def _beat(file: BinaryIO, holder: str) -> None:
    """Write a sign of life."""
    # In place and always of one length: a reader finds the holder's name at any time. The file
    # stays open: one that another process has deleted is not made again, nor its successor hit.
    os.pwrite(file.fileno(), f"{holder}{time.monotonic_ns():<20}\n".encode(), 0)
    os.fsync(file.fileno())
