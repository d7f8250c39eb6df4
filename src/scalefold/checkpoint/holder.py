"""The process that holds a lock, and whether it still runs."""

from __future__ import annotations

import datetime
import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """A process, described so that on the same machine it cannot be taken for another one."""

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
        if started is None and _exists(self.process):  # of another user, and /proc hides it
            return None
        return started != self.process_started

    def __str__(self) -> str:
        """For messages."""
        return f"process {self.process} on {self.host}, since {self.since}"


def _start_time(process: int) -> str | None:
    """When a process started, in the kernel's ticks; None if there is none to be seen."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return "never: a zombie" if fields[0] == "Z" else fields[19]


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
