"""One writer for a training's folder, on whichever node of a cluster it runs.

Locks of the kernel (flock, fcntl) do not serve: on Lustre mounted with ``localflock``, and on
BeeGFS by default, they do not reach other nodes; on NFS 3 that of a node that died stays until it
is back; other mounts refuse them. This one is made of files, and relies on two things that every
shared file system promises: of several processes that create one file exclusively, one succeeds;
and who opens a file after it was written and synchronised sees what was written.

``lock/<generation>`` names a holder; the highest generation holds the folder, and rewrites a count
in its file every few seconds (it beats). Another process may make the next generation only

- after the holder gave the folder back,
- or if it ran on this machine and is gone (kill -9: noticed at once),
- or if it has not beaten for a minute by the watcher's own clock (a node that died). Clocks of
  nodes are never compared.

Having made it, the new one looks once more at the former and steps back if that did beat. A holder
that was frozen for a minute (a suspended node, SIGSTOP) finds the higher generation by
`WriterLock.confirm`, just before a checkpoint appears, and ends. Nothing need ever be deleted by
hand; a first holder that wrote nothing beside the lock leaves no lock either (the log that the
workflow keeps of what it says is not its own).
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import logging
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scalefold.errors import InputError

logger = logging.getLogger(__name__)

LOCK_FOLDER: Final = "lock"
TRAINING_LOG: Final = "training.log"
"""What a training says, which the workflow writes beside the lock from before it begins."""
BEAT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""A holder that has not beaten for so long is dead. Longer than file systems take to recover."""

_GIVEN_BACK: Final = "given back"


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: enough to tell on the same machine whether it still runs."""

    process: int
    host: str
    since: str
    boot: str
    process_namespace: str
    process_started: str

    @staticmethod
    def this_process() -> Holder:
        """Describe this process."""
        return Holder(
            process=os.getpid(),
            host=socket.gethostname(),
            since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            process_namespace=str(Path("/proc/self/ns/pid").readlink()),
            process_started=str(_start_time(os.getpid())),
        )

    def has_ended(self) -> bool | None:
        """Whether the process is gone; None if it ran where that cannot be seen from here."""
        here = Holder.this_process()
        if (self.boot, self.process_namespace) != (here.boot, here.process_namespace):
            return None
        started = _start_time(self.process)
        if started is not None:
            return started != self.process_started
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # another user's, and /proc hides it
        return None

    def __str__(self) -> str:
        """For messages."""
        return f"process {self.process} on {self.host}, since {self.since}"


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
        return "" if newest is None else f"{newest.name}\n{newest.read_text('utf-8')}"
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
        self._folder = folder
        self._files = folder / LOCK_FOLDER
        self._generation = 0
        self._holder = ""
        self._beats = 0
        self._writing = threading.Lock()
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
        self._holder = json.dumps(asdict(Holder.this_process()))
        try:
            while not self._try():
                time.sleep(0.1)
        except OSError as error:
            raise InputError(self._explain(error)) from None
        for generation, path in self._generations().items():
            if generation < self._generation:
                path.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._keep_beating, name="lock", daemon=True)
        self._thread.start()

    def confirm(self) -> None:
        """Make sure that the lock is still held, just before something is written for good.

        Raises
        ------
        InputError
            If another process has taken it over.
        """
        with contextlib.suppress(FileNotFoundError):  # the next holder has cleaned up
            self._beat()
        newest = self._newest()
        if newest != self._generation:
            holder, _ = self._read(newest)
            raise InputError(
                f"{self._folder}: another training has taken over here ({holder or 'unknown'}), "
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
            self._clear_if_unused()

    def _clear_if_unused(self) -> None:
        """Leave nothing where nothing was written; the next one to come begins at 1 again.

        Not with a higher generation: a frozen holder of a lower one would find its own the highest.
        """
        unused = {path.name for path in self._folder.iterdir()} <= {LOCK_FOLDER, TRAINING_LOG}
        if unused and self._generation == self._newest() == 1:
            (self._files / "1").unlink()
            self._files.rmdir()  # not if another has just come

    def _try(self) -> bool:
        """Take the lock if it is free; False if another was faster, and all is to be seen anew."""
        self._files.mkdir(parents=True, exist_ok=True)
        former = self._newest()
        seen = self._read(former)
        if former and not self._is_free(former, *seen):
            raise InputError(self._refusal())
        mine = former + 1
        try:
            with (self._files / str(mine)).open("x"):
                self._generation = mine
        except (FileExistsError, FileNotFoundError):  # just taken, or just cleared
            return False
        self._beat()
        if self._newest() != mine:
            (self._files / str(mine)).unlink(missing_ok=True)
            return False
        if former and self._read(former)[1] not in (seen[1], _GIVEN_BACK):
            (self._files / str(mine)).unlink()
            raise InputError(self._refusal())
        return True

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

    def _refusal(self) -> str:
        holder, _ = self._read(self._newest())
        return (
            f"{self._folder}: another training writes here ({holder or 'unknown process'}). Wait "
            f"for it, stop it, or choose another folder; a dead one loses the lock by itself, "
            f"deleting {LOCK_FOLDER}/ is no help"
        )

    def _explain(self, error: OSError) -> str:
        paths = (self._files, *self._files.parents)
        nearest = next(path for path in paths if os.access(path, os.F_OK))
        if not nearest.is_dir():
            return f"{nearest}: is a file where a training's folder is to be: choose another folder"
        mends = {
            errno.EACCES: f"make {nearest} writable, or ",
            errno.ENOSPC: "make room, or ",
            errno.EDQUOT: "make room, or ",
        }
        return (
            f"{self._files}: cannot be written ({error.strerror}): "
            f"{mends.get(error.errno or 0, '')}choose another folder"
        )

    def _newest(self) -> int:
        return max(self._generations(), default=0)

    def _generations(self) -> dict[int, Path]:
        # Whatever else is there is none: on NFS a file that is deleted while open stays as .nfs….
        return {int(path.name): path for path in self._files.iterdir() if path.name.isdigit()}

    def _read(self, generation: int) -> tuple[Holder | None, str]:
        """Holder and last beat; None and what there is where it is just being written."""
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
        with self._writing:
            self._beats += 1
            self._write(f"{self._beats:010d}")

    def _write(self, beat: str) -> None:
        # In place and always of one length: a reader never finds less than the holder's name.
        path = self._files / str(self._generation)
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, f"{self._holder}\n{beat}\n".encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _start_time(process: int) -> str | None:
    """When a process started, in the kernel's ticks; None if there is none to be seen."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return "never: a zombie" if fields[0] == "Z" else fields[19]
