"""The runner: correctness first, then times beside other implementations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from scalefold_kernels.bench.agreement import Exact
from scalefold_kernels.bench.case import Args, Function, KernelCase
from scalefold_kernels.bench.timing import input_sets, times

_PACKAGES: Final = ("torch", "triton", "scalefold-kernels", "cuequivariance_torch", "trifast")


def check(cases: Sequence[KernelCase], dtype: torch.dtype, device: torch.device) -> bool:
    """Compare each case, outputs and all gradients, with float64; whether all are right."""
    right = True
    for case in cases:
        agreement = Exact(case, device, dtype).agreement(case.ours)
        right &= agreement.good
        print(f"{case.op}: {case.name}: {agreement}", flush=True)
    return right


def run(
    cases: Sequence[KernelCase], dtype: torch.dtype, device: torch.device, out: Path, compare: bool
) -> bool:
    """Check and time cases, print each as it is done, and write all so far as JSON.

    With ``compare`` also torch.compile and the peers that are installed. What is not right has no
    times; whether all are right is returned.
    """
    record: dict[str, Any] = {
        "benchmark": "kernels",
        "command": sys.argv,
        "commit": _commit(),
        "device": torch.cuda.get_device_name(device),
        "versions": _versions(),
        "dtype": str(dtype).removeprefix("torch."),
        "cases": [],
    }
    _write(out, record)  # says at once where it cannot be written
    print(f"{record['device']}, {record['dtype']}, {record['versions']}")
    print("µs, forward / forward and backward; * between events")
    for case in cases:
        record["cases"].append(measure(case, dtype, device))
        _write(out, record)
    # Last, since a fault of another's kernel ends every later call of the process.
    for case, row in zip(cases, record["cases"], strict=True):
        if compare and row["right"]:
            row["implementations"] += measure_others(case, dtype, device)
            _write(out, record)
    return all(row["right"] for row in record["cases"])


def measure(case: KernelCase, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Ours and plain torch's, for JSON; of what is wrong no times."""
    exact = Exact(case, device, dtype)
    ours = exact.agreement(case.ours)
    print(f"\n{case.op}: {case.name}\n  {ours}", flush=True)
    found = []
    if ours.good:
        sets = input_sets(case.inputs, device, dtype)
        both = {"ScaleFold": case.ours, "torch": case.reference}
        found = _measured(both, exact, sets, torch.OutOfMemoryError)
    return {
        "op": case.op,
        "shape": case.shape,
        "setting": case.setting,
        "right": ours.good,
        "agreement": vars(ours),
        "implementations": found,
    }


def measure_others(
    case: KernelCase, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """torch.compile and the peers that are installed; what fails says with what."""
    exact, sets = Exact(case, device, dtype), input_sets(case.inputs, device, dtype)
    # Compiled anew for each case: a shape must not be served by another one's dynamic code.
    torch.compiler.reset()
    compiled = torch.compile(case.reference, dynamic=False)
    print(f"\n{case.op}: {case.name}")
    return _measured({"torch.compile": compiled, **case.peers}, exact, sets, Exception)


def _measured(
    functions: Mapping[str, Function], exact: Exact, sets: Sequence[Args], allowed: type[Exception]
) -> list[dict[str, Any]]:
    """Errors and times, or what failed, if that is allowed to."""
    found = []
    for name, function in functions.items():
        made: dict[str, Any]
        try:
            made = {"error": exact.agreement(function).error} | times(function, sets)
        except allowed as failure:
            if isinstance(failure, ImportError):
                continue
            cause = getattr(failure, "inner_exception", failure)  # torch.compile's
            *_, reason = str(cause).splitlines() or [""]
            made = {"failed": f"{type(cause).__name__}: {reason.strip()}"}
        found.append({"name": name} | made)
        print(_line(found[-1]), flush=True)
    return found


def _line(made: Mapping[str, Any]) -> str:
    if "failed" in made:
        return f"  {made['name']:15} failed: {made['failed']}"
    microseconds = " / ".join(f"{1e6 * seconds:,.1f}" for seconds in made["seconds"].values())
    mark = "*" if "events" in made["method"].values() else ""
    return f"  {made['name']:15} {microseconds + mark:>20}   error {made['error']:.1e}"


def _write(out: Path, record: Mapping[str, Any]) -> None:
    write_text(out, json.dumps(record, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, "utf-8")
    new.replace(path)


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
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
