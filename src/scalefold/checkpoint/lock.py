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
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from scalefold.checkpoint.holder import Holder
from scalefold.errors import InputError
from scalefold.io.atomic import check_writable

logger = logging.getLogger(__name__)

LOCK_FOLDER: Final = "lock"
TRAINING_LOG: Final = "training.log"
"""Log of a training, which the workflow writes beside the lock from before the training begins."""
BEAT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""A holder without a sign of life for this time counts as dead. It is longer than file systems need
to recover.
"""

_GIVEN_BACK: Final = "given back"


def sign_of_life(folder: Path) -> str:
    """Return what the holder of a folder's lock wrote last; it changes while the holder is alive.

    Returns
    -------
    str
        Empty where there is no lock.
    """
    generations = (path for path in (folder / LOCK_FOLDER).glob("*") if path.name.isdigit())
    newest = max(generations, key=lambda path: int(path.name), default=None)
    try:
        return (
            ""
            if newest is None
            else f"{newest.name}\n{newest.read_text('utf-8', 'backslashreplace')}"
        )
    except FileNotFoundError:  # the next holder has just cleaned up
        return ""


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
        self._holder = json.dumps(asdict(Holder.this_process()))
        try:
            while not self._try():
                time.sleep(0.1)
        except OSError as error:
            raise InputError(
                f"{self._files}: cannot be written ({error.strerror}): make room and permission "
                "for it, or choose another folder"
            ) from None
        for generation, path in self._generations().items():
            if generation < self._generation:
                path.unlink(missing_ok=True)
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
        if self._newest() != self._generation:
            raise InputError(
                f"{self._folder}: another training has taken over here ({self._newest_holder()}), "
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
            self._write(_GIVEN_BACK)
            unused = {path.name for path in self._folder.iterdir()} <= {LOCK_FOLDER, TRAINING_LOG}
            # A higher generation stays: a frozen holder of a lower one must find it.
            if unused and self._generation == self._newest() == 1:
                (self._files / "1").unlink()
                self._files.rmdir()  # fails if another has just come

    def _try(self) -> bool:
        """Take the lock if it is free; False if another process was faster: then look again."""
        self._files.mkdir(parents=True, exist_ok=True)
        former = self._newest()  # 0, which is free, if there is none
        holder, beat = self._read(former)
        if not self._is_free(former, holder, beat):
            raise self._refusal()
        mine = self._files / str(former + 1)
        try:
            mine.open("x").close()
        except (FileExistsError, FileNotFoundError):  # just taken, or just cleared
            return False
        self._generation = former + 1
        self._beat()
        faster = self._newest() != self._generation
        alive = self._read(former)[1] not in (beat, _GIVEN_BACK)
        if faster or alive:
            mine.unlink(missing_ok=True)
        if alive:
            raise self._refusal()
        return not faster

    def _is_free(self, generation: int, holder: Holder | None, beat: str) -> bool:
        if beat == _GIVEN_BACK:
            return True
        ended = holder.has_ended() if holder is not None else None
        if ended is not None:
            return ended
        logger.info(
            "%s: held by %s; waiting up to %g s for a sign of life",
            self._folder, holder or "an unknown process", SILENCE_SECONDS,
        )  # fmt: skip
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, SILENCE_SECONDS / 10))
            _, now = self._read(generation)
            if now != beat:
                return now == _GIVEN_BACK
        logger.warning("%s: no sign of life from %s, taken over", self._folder, holder)
        return True

    def _refusal(self) -> InputError:
        return InputError(
            f"{self._folder}: another training writes here ({self._newest_holder()}). Wait for it, "
            "stop it, or choose another folder. A dead one loses the lock by itself: deleting "
            f"{LOCK_FOLDER}/ is no help"
        )

    def _newest_holder(self) -> Holder | str:
        return self._read(self._newest())[0] or "unknown process"

    def _newest(self) -> int:
        return max(self._generations(), default=0)

    def _generations(self) -> dict[int, Path]:
        # On NFS, a file that is deleted while open stays as .nfs….
        return {int(path.name): path for path in self._files.iterdir() if path.name.isdigit()}

    def _read(self, generation: int) -> tuple[Holder | None, str]:
        """Holder and sign of life; None and the content of a file that is just being written."""
        try:
            text = (self._files / str(generation)).read_text("utf-8")
        except FileNotFoundError:  # cleared, or cleaned up by the next holder
            return None, _GIVEN_BACK
        first, _, beat = text.partition("\n")
        try:
            return Holder(**json.loads(first)), beat.strip()
        except (ValueError, TypeError):
            return None, text

    def _keep_beating(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            try:
                self._beat()
            except FileNotFoundError:  # taken over: `confirm` will say so
                return
            except OSError as error:
                logger.warning("%s: no sign of life could be written: %s", self._files, error)

    def _beat(self) -> None:
        self._write(str(time.monotonic_ns()))

    def _write(self, beat: str) -> None:
        # In place and always of one length: a reader finds the holder's name at any time.
        descriptor = os.open(self._files / str(self._generation), os.O_WRONLY)
        try:
            os.pwrite(descriptor, f"{self._holder}\n{beat:<20}\n".encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
