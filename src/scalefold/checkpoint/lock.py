"""One writer for a training's folder, on any node of a cluster.

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
that was frozen for a minute finds by `WriterLock.confirm` that the newest file is not its own, just
before a checkpoint appears, and ends. Nobody has to delete a lock by hand.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from scalefold.errors import InputError
from scalefold.io.atomic import check_writable, make_folder

logger = logging.getLogger(__name__)

LOCK_FOLDER: Final = "lock"
TRAINING_LOG: Final = "training.log"
"""Log of a training, which the workflow writes beside the lock from before the training begins."""
FAILED_MARK: Final = "training.failed"
"""Made by the workflow when a training on this machine has failed, removed when it starts again."""
BEAT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""A holder without a sign of life for this time counts as dead. It is longer than file systems need
to recover.
"""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")


class _Sign(NamedTuple):
    """What the file of a number says: the holder, its socket, its sign of life. None: no file."""

    number: int
    text: str | None

    def __str__(self) -> str:
        """The holder, for messages."""
        return (self.text or "").partition("\n")[0] or "an unknown process"

    def has_ended(self) -> bool | None:
        """Whether the holder is gone; None if that cannot be seen from here."""
        if self.text is None or self.text.rstrip().endswith("given back"):  # by earlier versions
            return True
        machine, _, name = "".join(self.text.splitlines()[1:2]).rpartition(" ")
        if machine != _machine():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            answer = probe.connect_ex(f"\0{name}")
        return {0: False, errno.ECONNREFUSED: True}.get(answer)


def sign_of_life(folder: Path) -> str:
    """Return what the holder of a folder's lock wrote last; it changes while the holder is alive.

    Returns
    -------
    str
        Empty where there is no lock.
    """
    sign = _look(folder / LOCK_FOLDER)
    return "" if sign.text is None else f"{sign.number}\n{sign.text}"


def _look(files: Path, number: int | None = None) -> _Sign:
    """The sign of a number, by default of the highest; 0 is the highest where there is none."""
    if number is None:
        number = max(_numbers(files), default=0)
    try:
        return _Sign(number, (files / str(number)).read_text("utf-8", "backslashreplace"))
    except FileNotFoundError:
        return _Sign(number, None)


def _numbers(files: Path) -> list[int]:
    # On NFS, a file that is deleted while open stays as .nfs….
    return [int(path.name) for path in files.glob("[0-9]*") if path.name.isdecimal()]


def _machine() -> str:
    """Where sockets find each other: a system since its start, and there a network namespace."""
    return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()}"


class WriterLock:
    """The lock of a folder, held between `acquire` and `release`.

    Parameters
    ----------
    folder : Path
        Made by `acquire` if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, folder / LOCK_FOLDER
        self._held = contextlib.ExitStack()
        self._released = threading.Event()

    def __enter__(self) -> WriterLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock, after a minute at most if its holder seems dead.

        Raises
        ------
        InputError
            If another process holds it: says which, on which host, since when. Or if the folder
            cannot be written.
        """
        check_writable(self._files, "training")
        with contextlib.ExitStack() as held:
            end = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            name = f"scalefold-{uuid.uuid4()}"
            end.bind(f"\0{name}")  # in no folder, and gone with this process
            since = datetime.now(UTC).isoformat(timespec="seconds")
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {since}"
            self._holder = f"{holder}\n{_machine()} {name}\n"
            while not self._try():
                time.sleep(0.1)
            held.callback(self._give_back)
            self._thread = threading.Thread(target=self._keep_beating, name="lock", daemon=True)
            self._thread.start()
            self._held = held.pop_all()
        for number in _numbers(self._files):
            if number < int(self._path.name):
                (self._files / str(number)).unlink(missing_ok=True)

    def confirm(self) -> None:
        """Make sure that the lock is still held. Called just before a checkpoint appears.

        Raises
        ------
        InputError
            If another process has taken it over.
        """
        self._beat()
        if not self._is_newest():
            raise InputError(
                f"{self._folder}: another training has taken over here ({_look(self._files)}), "
                f"since this one gave no sign of life for {SILENCE_SECONDS:g} s. This one ends and "
                "leaves the checkpoints to the other"
            )

    def release(self) -> None:
        """Give the folder back; without effect if the lock is not held."""
        self._held.close()

    def _give_back(self) -> None:
        self._released.set()
        self._thread.join()
        self._file.close()
        with contextlib.suppress(OSError):  # another has just come, or the disk is gone
            if self._is_newest():
                self._path.unlink()
            self._files.rmdir()

    def _try(self) -> bool:
        """Take the lock if it is free; False if that has changed meanwhile: then look again."""
        make_folder(self._files)
        former = _look(self._files)
        if not self._is_free(former):
            raise InputError(
                f"{self._folder}: another training writes here ({former}). Wait for it, stop it, "
                "or choose another folder. A dead one loses the lock by itself: deleting "
                f"{LOCK_FOLDER}/ is no help"
            )
        if _look(self._files) != former:  # given back while it was watched
            return False
        self._path = self._files / str(former.number + 1)
        try:
            self._file = self._path.open("xb", buffering=0)
        except (FileExistsError, FileNotFoundError):  # just taken, or the folder just deleted
            return False
        self._beat()
        if self._is_newest() and _look(self._files, former.number) == former:
            return True
        self._file.close()
        self._path.unlink(missing_ok=True)
        return False

    def _is_free(self, former: _Sign) -> bool:
        """Whether the holder is gone, which may take a minute to see."""
        ended = former.has_ended()
        if ended is not None:
            return ended
        waiting = "%s: held by %s; waiting up to %g s for a sign of life"
        logger.info(waiting, self._folder, former, SILENCE_SECONDS)
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, SILENCE_SECONDS / 10))
            now = _look(self._files, former.number)
            if now != former:
                return bool(now.has_ended())
        logger.warning("%s: no sign of life from %s, taken over", self._folder, former)
        return True

    def _is_newest(self) -> bool:
        """Whether the newest file is this process's, though a number may have been made again."""
        return (_look(self._files).text or "").startswith(self._holder)

    def _keep_beating(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            try:
                self._beat()
            except OSError as error:
                logger.warning("%s: no sign of life could be written: %s", self._files, error)

    def _beat(self) -> None:
        """Write a sign of life."""
        # In place and always of one length: a reader finds the holder's name at any time. The file
        # stays open: one that another process has deleted is not made again, nor its successor hit.
        try:
            os.pwrite(self._file.fileno(), f"{self._holder}{time.monotonic_ns():<20}\n".encode(), 0)
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno != errno.ESTALE:  # deleted on another node, which `confirm` will say
                raise
