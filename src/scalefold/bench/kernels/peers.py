"""Other implementations, each measured in a process of its own.

A fault of a peer's kernel ends every later call of the process that it happens in.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import torch

from scalefold.bench.kernels.agreement import Exact
from scalefold.bench.kernels.case import KernelCase
from scalefold.bench.kernels.catalogue import find_case
from scalefold.bench.kernels.implementation import Setting


class Peers:
    """A process for each peer, begun when it is first asked for and kept until it fails."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._processes: dict[str, ProcessPoolExecutor] = {}

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._processes):
            self._end(name)

    def measure(self, case: KernelCase, name: str) -> dict[str, Any] | None:
        """Numbers of a peer, or what it failed with; None where it does not serve the case."""
        if name not in self._processes:
            self._processes[name] = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        place = (case.op, case.setting, case.shape)
        try:
            return self._processes[name].submit(_measure, place, name, self._setting).result()
        except BrokenProcessPool:
            self._end(name)
            return {"failed": "its process died"}
        except Exception as failure:
            self._end(name)
            return {"failed": f"{type(failure).__name__}: {failure}"}

    def _end(self, name: str) -> None:
        self._processes.pop(name).shutdown()


def _measure(place: tuple[str, str, str], name: str, setting: Setting) -> dict[str, Any] | None:
    case = find_case(*place)
    function = case.peers[name]()
    if function is None:
        return None
    if setting.device.type == "cuda":
        torch.cuda.set_device(setting.device.index or 0)
    return setting.measure(case, Exact(case, setting.device, setting.dtype), function)
