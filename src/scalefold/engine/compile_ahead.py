"""Compile Triton kernels in parallel before they are first launched.

Triton compiles a kernel at its first launch, one after the other. A training step has over a
hundred kernels, and a cold start takes minutes. So the step's work is done once without its
kernels: each launch only asks for its kernel, and other processes compile what was asked for into
Triton's cache. They are children of a helper, which is this file started as a module.

A machine without a GPU compiles by the helper too, from requests of a run:

    python -m scalefold.engine.compile_ahead '{"backend": "cuda", "arch": 90, "warp_size": 32}' 8 \
        triton.backends.nvidia.driver:CudaLauncher < requests
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from scalefold.io.atomic import write_bytes
from scalefold.launcher import Place, find_place
from scalefold.ops.kernels import hash_kernels_in_order

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
        marks are files in Triton's cache: each holds the request of a kernel that is there.
    """
    from triton import knobs, runtime

    _settle_paths()
    hash_kernels_in_order()
    started = time.perf_counter()
    driver = runtime.driver.active
    launcher = f"{driver.launcher_cls.__module__}:{driver.launcher_cls.__qualname__}"
    target = json.dumps(vars(driver.get_current_target()))
    command = [sys.executable, "-m", __name__, target, str(processes), launcher]
    asked: set[Path] = set()

    with contextlib.ExitStack() as stack:

        def ask(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
            """Triton's hook before it compiles a kernel: True means that it need not."""
            if fn.module.startswith(_TOGETHER):
                return False
            specialisation = compile["specialization_data"]
            mark = _mark(fn.jit_function, specialisation)
            if mark not in asked:
                if any((folder / mark.name).exists() for folder in _folders_of_marks()):
                    return False
                if not asked:
                    helper.append(stack.enter_context(_helper(command)))
                asked.add(mark)
                request = json.dumps([fn.module, fn.name, specialisation])
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


def _settle_paths() -> None:
    """Set what torch.compile else sets at some later time: compiled before, kernels would be
    compiled again, and the helper would leave them in another folder.
    """
    from triton import knobs

    os.environ.setdefault("TRITON_PTXAS_PATH", knobs.nvidia.ptxas.path)
    os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)


def _mark(kernel: Any, specialisation: str) -> Path:
    """The file that says that a kernel is in Triton's cache."""
    import triton

    key = "\n".join([triton.__version__, kernel.cache_key, specialisation])
    return _folders_of_marks()[0] / hashlib.sha256(key.encode()).hexdigest()


def _folders_of_marks() -> tuple[Path, Path]:
    """Folders in Triton's cache, and in the one that an image brings (`shipped_kernels`)."""
    from triton import knobs

    return Path(knobs.cache.dir) / "scalefold", Path(knobs.cache.override_dir) / "scalefold"


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

    def __init__(self, target: Any, launcher: Any) -> None:
        self._target = target
        self.launcher_cls = launcher

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0


def _help(target: dict[str, Any], processes: int, launcher: str) -> None:
    """Compile what is asked for, each kernel in a child of its own."""
    from triton import runtime
    from triton.backends.compiler import GPUTarget

    _settle_paths()
    hash_kernels_in_order()
    runtime.driver.set_active(_NoGpu(GPUTarget(**target), pkgutil.resolve_name(launcher)))
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
    """Compile a kernel and leave its mark. An error is dropped: the launch will meet it again.

    Its launcher is C, which Triton else has compiled at the kernel's first launch.
    """
    import triton

    # Options name a file of Triton's, which is in another folder on another machine.
    own, anywhere = str(Path(triton.__file__).parent), "{triton}"
    module, name, specialisation = json.loads(request.replace(anywhere, own))
    with contextlib.suppress(Exception):
        kernel = getattr(import_module(module), name)
        compiled = kernel.preload(specialisation)
        mark = _mark(kernel, specialisation)
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(mark, request.replace(own, anywhere).encode())
        triton.runtime.driver.active.launcher_cls(compiled.src, compiled.metadata)


if __name__ == "__main__":
    _help(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
