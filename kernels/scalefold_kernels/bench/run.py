"""The runner: correctness first, then times beside other implementations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import torch

from scalefold_kernels.bench.agreement import Exact
from scalefold_kernels.bench.case import Function, KernelCase
from scalefold_kernels.bench.cases import find_case
from scalefold_kernels.bench.table import agreement_line, block, heading
from scalefold_kernels.bench.timing import Setting

BENCHMARK: Final = "kernels"
"""What a record says it is of."""

_PACKAGES: Final = ("torch", "triton", "scalefold-kernels", "cuequivariance_torch", "trifast")


def check(cases: Sequence[KernelCase], dtype: torch.dtype, device: torch.device) -> bool:
    """Compare each case, outputs and all gradients, with float64; whether all are right."""
    right = True
    for case in cases:
        agreement = Exact(case, device, dtype).agreement(case.ours)
        right &= agreement.good
        print(f"{case.op}: {case.shape}: {agreement_line(agreement.as_dict())}", flush=True)
    return right


def run(cases: Sequence[KernelCase], out: Path, dtype: torch.dtype, *, compare: bool) -> bool:
    """Check and time cases on the current GPU, print each as it is done, and write all as JSON.

    Parameters
    ----------
    cases : sequence of KernelCase
    out : Path
        JSON file to write; it is complete after each case.
    dtype : torch.dtype
    compare : bool
        Also torch.compile and the other implementations that can be imported.

    Returns
    -------
    bool
        Whether all were right; what is not right has no times.
    """
    setting = Setting.here(dtype)
    record: dict[str, Any] = {
        "benchmark": BENCHMARK,
        "command": sys.argv,
        "commit": _commit(),
        "device": torch.cuda.get_device_name(setting.device),
        "versions": _versions(),
        "dtype": str(dtype).removeprefix("torch."),
        "copy_bytes_per_second": setting.gpu.bytes_per_second,
        "matmul_flops_per_second": setting.gpu.flops_per_second,
        "cases": [],
    }
    write_text(out, json.dumps(record))  # says at once where it cannot be written
    print(heading(record))
    with Peers(setting) as peers:
        for case in cases:
            row = measure(case, setting, peers if compare else None)
            record["cases"].append(row)
            print(block(row), flush=True)
            write_text(out, json.dumps(record, indent=2) + "\n")
    return all(row["right"] for row in record["cases"])


def read_record(file: Path) -> dict[str, Any]:
    """What `run` has written.

    Raises
    ------
    LookupError
        The file is none of these.
    """
    try:
        record: dict[str, Any] = json.loads(file.read_text("utf-8"))
        known = record["benchmark"] == BENCHMARK
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise LookupError(f"{file}: not a record of the benchmark of kernels")
    return record


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, "utf-8")
    new.replace(path)


def measure(case: KernelCase, setting: Setting, peers: Peers | None) -> dict[str, Any]:
    """One case for JSON, with other implementations if ``peers`` are given."""
    exact, gpu = Exact(case, setting.device, setting.dtype), setting.gpu
    ours = exact.agreement(case.ours)
    found: list[dict[str, Any]] = []
    if ours.good:
        for name, function in (("ScaleFold", case.ours), ("torch", case.reference)):
            found.append({"name": name} | _numbers(case, setting, exact, function))
        if peers is not None:
            compiled = _or_failure(partial(_compiled, case, setting, exact))
            found.append({"name": "torch.compile"} | compiled)
    del exact
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if ours.good and peers is not None:
        for name in case.peers:
            numbers = peers.measure(case, name)
            if numbers is not None:
                found.append({"name": name} | numbers)
    floor = gpu.floor(case.forward)
    return {
        "op": case.op,
        "shape": case.shape,
        "setting": case.setting,
        "floor_seconds": {
            "forward": floor,
            "forward_backward": floor + gpu.floor(case.backward),
        },
        "bytes": {"forward": case.forward.bytes, "backward": case.backward.bytes},
        "flops": {"forward": case.forward.flops, "backward": case.backward.flops},
        "right": ours.good,
        "agreement": ours.as_dict(),
        "implementations": found,
    }


class Peers:
    """A process for each other implementation, kept until it fails.

    A fault of a peer's kernel ends every later call of the process that it happens in.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._processes: dict[str, ProcessPoolExecutor] = {}

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._processes):
            self._end(name)

    def measure(self, case: KernelCase, name: str) -> dict[str, Any] | None:
        """Numbers of a peer, or what it failed with; None where it is not installed."""
        if name not in self._processes:
            self._processes[name] = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        place = (case.op, case.setting, case.shape)
        waiting = self._processes[name].submit(measure_peer, place, name, self._setting)
        numbers = _or_failure(waiting.result)
        if numbers is not None and "failed" in numbers:
            self._end(name)
        return numbers

    def _end(self, name: str) -> None:
        self._processes.pop(name).shutdown()


def measure_peer(place: tuple[str, str, str], name: str, setting: Setting) -> dict[str, Any] | None:
    """In a process of its own: numbers of a peer, None where it is not installed."""
    case = find_case(*place)
    function = case.peers[name]()
    if function is None:
        return None
    if setting.device.type == "cuda":
        torch.cuda.set_device(setting.device)
    return _numbers(case, setting, Exact(case, setting.device, setting.dtype), function)


def _numbers(
    case: KernelCase, setting: Setting, exact: Exact, function: Function
) -> dict[str, Any]:
    """Error, times and peak memory of one implementation."""
    try:
        error = exact.agreement(function).error
    except torch.OutOfMemoryError:
        error = None
    return {"error": error} | setting.times(case, function)


def _compiled(case: KernelCase, setting: Setting, exact: Exact) -> dict[str, Any]:
    """Numbers of the reference as torch compiles it."""
    # Compiled anew for each case: a shape must not be served by another one's dynamic code.
    torch._dynamo.reset()
    return _numbers(case, setting, exact, torch.compile(case.reference, dynamic=False))


def _or_failure(numbers: Callable[[], Any]) -> Any:
    """Numbers of another's code, or what it failed with, of whatever kind."""
    try:
        return numbers()
    except BrokenProcessPool:
        return {"failed": "its process died"}
    except Exception as failure:
        cause = getattr(failure, "inner_exception", failure)
        *_, reason = str(cause).splitlines() or [""]
        return {"failed": f"{type(cause).__name__}: {reason.strip()}"}


def _commit() -> str | None:
    """The checkout's, with ``+`` if files have changed since; None outside of one."""
    git = ["git", "-C", str(Path(__file__).parent), "describe"]
    options = ["--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.check_output([*git, *options], text=True, stderr=subprocess.DEVNULL)[:-1]
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"cudnn": str(torch.backends.cudnn.version())}
