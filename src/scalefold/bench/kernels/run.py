"""``scalefold bench kernels``: correctness first, then times beside other implementations."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from scalefold.bench.kernels.agreement import Exact
from scalefold.bench.kernels.case import Function, KernelCase
from scalefold.bench.kernels.implementation import Setting
from scalefold.bench.kernels.peers import Peers
from scalefold.bench.kernels.table import TABLE_WIDTH, case_table, heading
from scalefold.bench.kernels.timing import Device
from scalefold.bench.record import origin, write_record
from scalefold.errors import InputError
from scalefold.ops.triton import why_not

_PACKAGES = ("torch", "triton", "cuequivariance_torch", "trifast")


def require_kernels(device: torch.device) -> None:
    """Raise `InputError` where the kernels cannot run."""
    obstacle = why_not(device)
    if obstacle:
        raise InputError(f"the kernels cannot be measured here: {obstacle}")


def bench_kernels(
    cases: Sequence[KernelCase],
    out: Path,
    *,
    dtype: torch.dtype,
    compare: bool,
    device: torch.device,
    console: Console,
) -> bool:
    """Check and time cases, print a table of each as it is done, and write all as JSON.

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

    Raises
    ------
    InputError
        The file cannot be written.
    """
    gpu = Device.measure(device, dtype)
    result = origin("kernels", device) | {
        "versions": _versions(),
        "dtype": str(dtype).removeprefix("torch."),
        "copy_bytes_per_second": gpu.bytes_per_second,
        "matmul_flops_per_second": gpu.flops_per_second,
        "cases": [],
    }
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(heading(result))
    setting = Setting(dtype, device, gpu)
    with Peers(setting) as peers:
        for case in cases:
            row = _measure(case, setting, peers if compare else None)
            result["cases"].append(row)
            console.print(case_table(row))
            write_record(result, out)
    return all(row["right"] for row in result["cases"])


def _measure(case: KernelCase, setting: Setting, peers: Peers | None) -> dict[str, Any]:
    exact, gpu = Exact(case, setting.device, setting.dtype), setting.gpu
    row: dict[str, Any] = {
        "op": case.op,
        "shape": case.shape,
        "setting": case.setting,
        "floor_seconds": {
            "forward": gpu.floor(case.forward),
            "forward_backward": gpu.floor(case.forward) + gpu.floor(case.backward),
        },
        "bytes": {"forward": case.forward.bytes, "backward": case.backward.bytes},
        "flops": {"forward": case.forward.flops, "backward": case.backward.flops},
    }
    ours = exact.agreement(case.ours)
    row |= {"right": ours.good, "agreement": vars(ours) | {"good": ours.good}}
    row["implementations"] = found = []
    if ours.good:
        for name, function in _implementations(case):
            found.append({"name": name} | setting.measure(case, exact, function))
        if peers is not None:
            found.append({"name": "torch.compile"} | _measure_compiled(case, setting, exact))
    del exact
    torch.cuda.empty_cache()
    if ours.good and peers is not None:
        for name in case.peers:
            numbers = peers.measure(case, name)
            if numbers is not None:
                found.append({"name": name} | numbers)
    return row


def _implementations(case: KernelCase) -> list[tuple[str, Function]]:
    return [("ScaleFold", case.ours), ("torch", case.reference)]


def _measure_compiled(case: KernelCase, setting: Setting, exact: Exact) -> dict[str, Any]:
    """Numbers of the reference as torch compiles it, or what compiling failed with."""
    # Compiled anew for each case: a shape must not be served by another one's dynamic code.
    torch._dynamo.reset()
    try:
        return setting.measure(case, exact, torch.compile(case.reference, dynamic=False))
    except Exception as failure:  # of whatever kind: without compiling it has just run
        cause = getattr(failure, "inner_exception", failure)
        *_, reason = str(cause).splitlines() or [""]
        return {"failed": f"{type(cause).__name__}: {reason.strip()}"}


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"cudnn": str(torch.backends.cudnn.version())}
