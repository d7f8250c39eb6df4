"""Compile Triton kernels in parallel before they are first launched.

Triton compiles a kernel at its first launch, one after the other. A training step has over a
hundred kernels, and a cold start takes minutes. So the step's work is done once without its
kernels: each launch only asks for its kernel, and other processes compile what was asked for into
Triton's cache. They are children of a helper, which is this file started as a module.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from scalefold.launcher import Place, find_place
from scalefold.ops.triton import hash_kernels_in_order

logger = logging.getLogger(__name__)

_MOST_PROCESSES: Final = 16

_TOGETHER: Final = "scalefold_kernels.ops.exchange"
"""Kernels in which ranks wait for each other: all ranks launch them, or none."""


@contextlib.contextmanager
def launches_only_compile(processes: int) -> Iterator[set[Path]]:
    """Within the block, launches of Triton kernels that were never compiled do nothing else.

    Their outputs keep what the allocator left there, so the block's results mean nothing. At its
    end the kernels are in Triton's cache. One that does not compile raises its error when it is
    launched after the block. Kernels of torch.compile are compiled and launched as always.

    Parameters
    ----------
    processes : int
        That compile. They end with this process, also if it is killed.

    Yields
    ------
    set of Path
        One mark for each kernel that was asked for. If it stays empty, all launches were made. The
        marks are files in Triton's cache and tell which kernels are there.
    """
    from triton import knobs, runtime

    # Else torch.compile sets them at some later time: what is compiled before, is compiled again,
    # and the helper, which begins before, leaves kernels in another folder than is looked into.
    os.environ.setdefault("TRITON_PTXAS_PATH", knobs.nvidia.ptxas.path)
    os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)
    hash_kernels_in_order()
    started = time.perf_counter()
    target = json.dumps(vars(runtime.driver.active.get_current_target()))
    command = [sys.executable, "-m", __name__, target, str(processes)]
    asked: set[Path] = set()

    with contextlib.ExitStack() as stack:

        def ask(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
            """Triton's hook before it compiles a kernel: True means that it need not."""
            if fn.module.startswith(_TOGETHER):
                return False
            specialisation = compile["specialization_data"]
            mark = _mark(fn.jit_function, specialisation)
            if mark not in asked:
                if mark.exists():
                    return False
                if not asked:
                    helper.append(stack.enter_context(_helper(command)))
                asked.add(mark)
                request = json.dumps([fn.module, fn.name, specialisation, str(mark)])
                with contextlib.suppress(BrokenPipeError):
                    print(request, file=helper[0].stdin, flush=True)
            return True

        helper: list[subprocess.Popen[str]] = []
        with knobs.runtime.scope():
            knobs.runtime.jit_cache_hook = ask
            yield asked
    if asked:
        seconds = time.perf_counter() - started
        logger.info("compiled %d kernels in %.1f s", len(asked), seconds)


def compiling_processes() -> int:
    """The cores that this process may use, shared with the other ranks of its node."""
    place = find_place() or Place()
    return max(1, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)) // place.local_size))


def _mark(kernel: Any, specialisation: str) -> Path:
    """The file that says that a kernel is in Triton's cache."""
    import triton

    key = "\n".join([triton.__version__, kernel.cache_key, specialisation])
    name = hashlib.sha256(key.encode()).hexdigest()
    return Path(triton.knobs.cache.dir) / "scalefold" / name


@contextlib.contextmanager
def _helper(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The helper. The block's end waits for its work, an error kills it and its children."""
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, process_group=0)
    try:
        yield helper
        helper.communicate()
    except BaseException:
        os.killpg(helper.pid, signal.SIGKILL)
        raise
    finally:
        helper.wait()


class _NoGpu:
    """Triton's driver in a process that compiles for a GPU and does not open it."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0


def _help(target: dict[str, Any], processes: int) -> None:
    """Compile what is asked for, each kernel in a child of its own."""
    from triton import runtime
    from triton.backends.compiler import GPUTarget

    hash_kernels_in_order()
    runtime.driver.set_active(_NoGpu(GPUTarget(**target)))
    running = 0
    for request in sys.stdin:
        if running == processes:
            os.wait()
            running -= 1
        if os.fork() == 0:
            _compile(request)
            os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()


def _compile(request: str) -> None:
    """Compile a kernel and leave its mark. An error is dropped: the launch will meet it again."""
    module, name, specialisation, mark = json.loads(request)
    with contextlib.suppress(Exception):
        getattr(import_module(module), name).preload(specialisation)
        Path(mark).parent.mkdir(parents=True, exist_ok=True)
        Path(mark).touch()


if __name__ == "__main__":
    _help(json.loads(sys.argv[1]), int(sys.argv[2]))
