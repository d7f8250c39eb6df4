"""One writer for a training's folder, on any node of a cluster.

Locks of the kernel (flock, fcntl) are not enough. On Lustre with ``localflock`` and on BeeGFS they
do not reach other nodes, on NFS 3 the lock of a dead node stays, and some mounts refuse them. This
lock is made of files. It needs two promises, which every shared file system gives. If several
processes create a file exclusively, one succeeds. A process that opens a file sees what was
synchronised before.

``lock/<generation>`` describes a holder. The highest generation holds the folder, and rewrites a
sign of life in its file every few seconds. Another process makes the next generation

- if the holder gave the folder back,
- or if it ran on this machine and is gone, which is seen at once,
- or if its sign of life did not change for a minute by the watcher's own clock. Clocks of nodes
  are never compared.

The new one then looks at the former again, and steps back if that has come back to life. A holder
that was frozen for a minute finds the higher generation by `WriterLock.confirm`, just before a
checkpoint appears, and ends. Nobody has to delete a lock by hand.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from scalefold.errors import InputError
from scalefold.io.atomic import check_writable

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

_GIVEN_BACK: Final = "given back"
_NAMESPACE: Final = Path("/proc/self/ns/pid")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Holder:
    """A process, by default this one, that on its machine cannot be taken for another one."""

    process: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    since: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    boot: str = field(default_factory=lambda: _BOOT.read_text().strip())
    process_namespace: str = field(default_factory=lambda: str(_NAMESPACE.readlink()))
    process_started: str | None = field(default_factory=lambda: _start_time(os.getpid()))

    def has_ended(self) -> bool | None:
        """Whether the process is gone; None if it ran where that cannot be seen from here."""
        here, started = Holder(), _start_time(self.process)
        seen = (self.boot, self.process_namespace) == (here.boot, here.process_namespace)
        return started != self.process_started if seen and started is not None else None

    def __str__(self) -> str:
        """For messages."""
        return f"process {self.process} on {self.host}, since {self.since}"


def _start_time(process: int) -> str | None:
    """When a process started, in the kernel's ticks; None if it is there and /proc hides it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state, *others = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "never: a zombie" if state == "Z" else others[18]
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return "never: gone"
    except PermissionError:  # of another user
        pass
    return None


class _Sign(NamedTuple):
    """What the file of a generation says: who has it, and the last sign of life."""

    generation: int
    holder: Holder | str
    beat: str


def sign_of_life(folder: Path) -> str:
    """Return what the holder of a folder's lock wrote last; it changes while the holder is alive.

    Returns
    -------
    str
        Empty where there is no lock.
    """
    files = folder / LOCK_FOLDER
    try:
        newest = str(max(_generations(files)))
        return f"{newest}\n{(files / newest).read_text('utf-8', 'backslashreplace')}"
    except (FileNotFoundError, NotADirectoryError, ValueError):  # none, or just cleaned up
        return ""


def _look(files: Path, generation: int | None = None) -> _Sign:
    """The sign of a generation, by default of the newest one; where there is none, number 0."""
    if generation is None:
        generation = max(_generations(files), default=0)
    try:
        text = (files / str(generation)).read_text("utf-8", "backslashreplace")
    except FileNotFoundError:  # none, or cleared, or cleaned up by the next holder
        return _Sign(generation, "unknown process", _GIVEN_BACK)
    first, _, beat = text.partition("\n")
    try:
        said = json.loads(first)
        holder = Holder(**{each.name: said[each.name] for each in fields(Holder)})
        return _Sign(generation, holder, beat.strip())
    except (ValueError, TypeError, KeyError):  # just being written
        return _Sign(generation, "unknown process", text)


def _generations(files: Path) -> list[int]:
    # On NFS, a file that is deleted while open stays as .nfs….
    return [int(path.name) for path in files.iterdir() if path.name.isdigit()]


class WriterLock:
    """The lock of a folder, held between `acquire` and `release`.

    Parameters
    ----------
    folder : Path
        Made by `acquire` if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, folder / LOCK_FOLDER
        self._generation, self._holder = 0, ""
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

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
        check_writable(self._folder, "training")
        self._holder = json.dumps(asdict(Holder()))
        try:
            while not self._try():
                time.sleep(0.1)
        except OSError as error:
            raise InputError(
                f"{self._files}: cannot be written ({error.strerror}): make room and permission "
                "for it, or choose another folder"
            ) from None
        for generation in _generations(self._files):
            if generation < self._generation:
                (self._files / str(generation)).unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._keep_beating, name="lock", daemon=True)
        self._thread.start()

    def confirm(self) -> None:
        """Make sure that the lock is still held. Called just before a checkpoint appears.

        Raises
        ------
        InputError
            If another process has taken it over.
        """
        with contextlib.suppress(FileNotFoundError):  # the next holder has cleaned up
            self._beat()
        newest = _look(self._files)
        if newest.generation != self._generation:
            raise InputError(
                f"{self._folder}: another training has taken over here ({newest.holder}), "
                f"since this one gave no sign of life for {SILENCE_SECONDS:g} s. This one ends and "
                "leaves the checkpoints to the other"
            )

    def release(self) -> None:
        """Give the folder back; without effect if the lock is not held."""
        if self._thread is None:
            return
        self._released.set()
        self._thread.join()
        self._thread = None
        with contextlib.suppress(OSError):  # taken over, or the disk is gone: then it falls silent
            self._beat(_GIVEN_BACK)
            unused = {path.name for path in self._folder.iterdir()} <= {LOCK_FOLDER, TRAINING_LOG}
            # A higher generation stays: a frozen holder of a lower one must find it.
            if unused and self._generation == max(_generations(self._files)) == 1:
                (self._files / "1").unlink()
                self._files.rmdir()  # fails if another has just come

    def _try(self) -> bool:
        """Take the lock if it is free; False if another process was faster: then look again."""
        self._files.mkdir(parents=True, exist_ok=True)
        former = _look(self._files)
        mine = self._files / str(former.generation + 1)
        if self._is_free(former):
            try:
                mine.touch(exist_ok=False)
            except (FileExistsError, FileNotFoundError):  # just taken, or just cleared
                return False
            self._generation = former.generation + 1
            self._beat()
            faster = max(_generations(self._files)) != self._generation
            alive = _look(self._files, former.generation).beat not in (former.beat, _GIVEN_BACK)
            if faster or alive:
                mine.unlink(missing_ok=True)
            if not alive:
                return not faster
        raise InputError(
            f"{self._folder}: another training writes here ({_look(self._files).holder}). Wait for "
            "it, stop it, or choose another folder. A dead one loses the lock by itself: deleting "
            f"{LOCK_FOLDER}/ is no help"
        )

    def _is_free(self, former: _Sign) -> bool:
        """Whether the holder is gone, which may take a minute to see."""
        if former.beat == _GIVEN_BACK:
            return True
        ended = former.holder.has_ended() if isinstance(former.holder, Holder) else None
        if ended is not None:
            return ended
        waiting = "%s: held by %s; waiting up to %g s for a sign of life"
        logger.info(waiting, self._folder, former.holder, SILENCE_SECONDS)
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, SILENCE_SECONDS / 10))
            now = _look(self._files, former.generation).beat
            if now != former.beat:
                return now == _GIVEN_BACK
        logger.warning("%s: no sign of life from %s, taken over", self._folder, former.holder)
        return True

    def _keep_beating(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            try:
                self._beat()
            except FileNotFoundError:  # taken over: `confirm` will say so
                return
            except OSError as error:
                logger.warning("%s: no sign of life could be written: %s", self._files, error)

    def _beat(self, word: str = "") -> None:
        """Write a sign of life, or another word in its place."""
        # In place and always of one length: a reader finds the holder's name at any time.
        text = f"{self._holder}\n{word or time.monotonic_ns():<20}\n"
        with (self._files / str(self._generation)).open("r+b", buffering=0) as file:
            file.write(text.encode())
            os.fsync(file.fileno())
