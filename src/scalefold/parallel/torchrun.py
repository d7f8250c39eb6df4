"""``scalefold-torchrun``: torchrun for jobs of a cluster, with the same options.

Two things differ. SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored, as under nohup) are passed on
to the processes, which then take the time they need to write a checkpoint (torchrun kills them
after 30 s). And it ends with their exit code, which tells a stop (75) from a failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

_PASSED_ON: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def main() -> None:
    """Run torchrun with the arguments of this process."""
    for number in _PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _pass_on)
    try:
        # torchrun installs handlers of its own for the signals named here, and no others.
        torchrun(["--signals-to-handle=SIGINT", *sys.argv[1:]])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        for number in _PASSED_ON:  # while the interpreter shuts down, they would be its end
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit(first.exitcode if first.exitcode > 0 else 128 - first.exitcode) from None


def _pass_on(number: int, frame: FrameType | None) -> None:
    # To those that this thread has started; not to their children, such as the loader's workers.
    # Before they are there, and when they have ended, there is nothing to stop.
    for process in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), number)
