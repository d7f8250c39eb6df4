"""``scalefold bench kernels``: correctness first, then times beside other implementations."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import scalefold.bench.kernels as package
from scalefold.bench.kernels.agreement import Exact, evaluate, tensors
from scalefold.bench.kernels.case import Function, Inputs, KernelCase
from scalefold.bench.kernels.table import TABLE_WIDTH, case_table, heading
from scalefold.bench.kernels.timing import Device, time_calls
from scalefold.bench.record import origin, write_record
from scalefold.errors import InputError
from scalefold.ops.triton import why_not

MAX_COPIES = 16
_PACKAGES = ("torch", "triton", "cuequivariance_torch", "trifast")


def require_kernels(device: torch.device) -> None:
    """Raise `InputError` where the kernels cannot run."""
    obstacle = why_not(device)
    if obstacle:
        raise InputError(f"the kernels cannot be measured here: {obstacle}")


def all_cases(ops: Sequence[str] = (), contains: str = "") -> list[KernelCase]:
    """The cases of these ops (all, if none is named) whose shape or setting holds a text.

    Raises
    ------
    InputError
        There is no such op, or nothing is left.
    """
    found: list[KernelCase] = []
    for module in pkgutil.iter_modules(package.__path__):
        loaded = import_module(f"{package.__name__}.{module.name}")
        if hasattr(loaded, "cases"):
            found += loaded.cases()
    known = sorted({case.op for case in found})
    unknown = sorted(set(ops) - set(known))
    if unknown:
        raise InputError(f"no benchmark of {', '.join(unknown)}; there are {', '.join(known)}")
    kept = [
        case
        for case in found
        if (not ops or case.op in ops) and contains in f"{case.setting}, {case.shape}"
    ]
    if not kept:
        shapes = sorted({f"{case.setting}, {case.shape}" for case in found})
        raise InputError(f"no shape contains {contains!r}; there are: {'; '.join(shapes)}")
    return kept


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
    torch.cuda.set_device(device.index or 0)
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
    for case in cases:
        row = _measure(case, dtype, compare, device, gpu)
        result["cases"].append(row)
        console.print(case_table(row))
        write_record(result, out)
    return all(row["right"] for row in result["cases"])


def _measure(
    case: KernelCase, dtype: torch.dtype, compare: bool, device: torch.device, gpu: Device
) -> dict[str, Any]:
    exact = Exact(case, device, dtype)
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
    implementations = []
    if ours.good:
        for name, function in _implementations(case, compare):
            try:
                error = ours.error if function is case.ours else _error(exact, function)
                numbers = {"error": error} | _times(case, function, dtype, device, gpu)
            except Exception as failure:
                if name not in case.peers:
                    raise
                # Code of others may lack a package or refuse a shape; the rest is measured.
                numbers = {"failed": f"{type(failure).__name__}: {failure}"}
            implementations.append({"name": name} | numbers)
    row["implementations"] = implementations
    del exact
    torch.cuda.empty_cache()
    return row


def _implementations(case: KernelCase, compare: bool) -> Iterable[tuple[str, Function]]:
    yield "ScaleFold", case.ours
    yield "torch", case.reference
    if compare:
        # Recompiled for each case: a shape must not be served by another one's dynamic code.
        torch._dynamo.reset()
        yield "torch.compile", torch.compile(case.reference, dynamic=False)
        for name, load in case.peers.items():
            function = load()
            if function is not None:
                yield name, function


def _error(exact: Exact, function: Function) -> float | None:
    try:
        return exact.agreement(function).error
    except torch.OutOfMemoryError:
        return None


def _times(
    case: KernelCase, function: Function, dtype: torch.dtype, device: torch.device, gpu: Device
) -> dict[str, Any]:
    try:
        sets = input_sets(case, dtype, device, gpu)
        with torch.no_grad():
            forward = time_calls([functools.partial(function, *inputs) for inputs in sets])
            grads = gradients_like(list(tensors(function(*sets[0]))))
        both = time_calls([functools.partial(evaluate, function, i, grads) for i in sets])
        peak = _peak_bytes(lambda: evaluate(function, sets[0], grads))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"out_of_memory": True}
    return {
        "seconds": {"forward": forward.seconds, "forward_backward": both.seconds},
        "method": {"forward": forward.method, "forward_backward": both.method},
        "peak_bytes": peak,
    }


def gradients_like(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients in the outputs' own layout: those of slices of one tensor are such slices too.

    So a training step finds them, where one op's backward feeds the other's.
    """
    bases: dict[int, torch.Tensor] = {}
    found = []
    for out in outputs:
        base = out if out._base is None else out._base
        whole = bases.setdefault(id(base), torch.randn_like(base))
        found.append(whole.as_strided(out.shape, out.stride(), out.storage_offset()))
    return found


def input_sets(
    case: KernelCase, dtype: torch.dtype, device: torch.device, gpu: Device
) -> list[Inputs]:
    """Inputs that together are more than twice what the GPU's cache holds, two sets at least."""
    first = case.inputs(device, dtype)
    size = sum(t.numel() * t.element_size() for t in tensors(first))
    copies = min(max(2, -(-2 * gpu.cache_bytes // max(size, 1))), MAX_COPIES)
    return [first, *(case.inputs(device, dtype) for _ in range(copies - 1))]


def _peak_bytes(call: Callable[[], object]) -> int:
    """Memory that a call takes beyond its inputs, at its highest."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
