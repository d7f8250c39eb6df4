"""The tuner: each kernel's fastest configurations on this GPU, written into its tile table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from scalefold_kernels.bench.agreement import Exact
from scalefold_kernels.bench.case import KernelCase
from scalefold_kernels.bench.run import write_text
from scalefold_kernels.bench.timing import Call, calls, input_sets, time_calls
from scalefold_kernels.tiles import (
    Lookup,
    Overridden,
    find_table,
    overridden,
    read_table,
    read_tables,
)

Winners = dict[Lookup, dict[str, int]]


def tune(
    cases: Sequence[KernelCase], dtype: torch.dtype, device: torch.device, folder: Path | None
) -> list[Path]:
    """Find the fastest candidate for every lookup that these cases make, and write the tables.

    Kernels are tuned one after the other while the rest of the op runs with the best so far.
    The winners together must pass the correctness check of the case, or it is a RuntimeError. Rules
    of other architectures stay as they are, and so do those of kernels that the cases do not reach.
    Tables are written into ``folder``, or where the kernels read them. Their paths are returned.
    """
    winners: Winners = {}
    for case in cases:
        with overridden() as lookups:
            lookups.instead.update(winners)
            _tune_case(case, dtype, device, lookups, winners)
    written = []
    kernels = {kernel for kernel, _, _ in winners}
    for read in sorted({find_table(kernel)[0] for kernel in kernels}):
        tables = {
            kernel: _with_rules(table, kernel, winners) if kernel in kernels else table
            for kernel, table in read_tables(read).items()
        }
        path = read if folder is None else folder / f"{read.parent.name}.json"
        write_text(path, tables_text(tables))
        written.append(path)
    return written


def _tune_case(
    case: KernelCase,
    dtype: torch.dtype,
    device: torch.device,
    lookups: Overridden,
    winners: Winners,
) -> None:
    forward, both = calls(case.ours, input_sets(case.inputs, device, dtype))
    in_forward = set(lookups.seen)
    both[0]()
    # Other configurations of a kernel may ask for new shapes of another: look again.
    while pending := [key for key in lookups.seen if key not in winners]:
        key = pending[0]
        timed = forward if key in in_forward else both
        with torch.set_grad_enabled(timed is both):
            winners[key] = _fastest(key, timed, lookups)
        lookups.instead[key] = winners[key]
    agreement = Exact(case, device, dtype).agreement(case.ours)
    if not agreement.good:
        raise RuntimeError(
            f"{case.op}, {case.shape}: no table was written; with the fastest: {agreement}"
        )


def _fastest(key: Lookup, calls: Sequence[Call], lookups: Overridden) -> dict[str, int]:
    best, best_seconds = lookups.seen[key], time_calls(calls).seconds
    before = best_seconds
    for candidate in candidates(read_table(key[0])):
        lookups.instead[key] = candidate
        try:
            seconds = time_calls(calls).seconds
        except Exception as error:
            # What a GPU has no room for is no candidate there; anything else is a fault.
            if type(error).__name__ not in ("OutOfResources", "CompilationError"):
                raise
            continue
        if seconds < best_seconds:
            best, best_seconds = candidate, seconds
    lookups.instead[key] = best
    shape = ", ".join(f"{name}={value}" for name, value in key[2])
    print(
        f"{key[0]}  {shape}: {before * 1e6:.1f} -> {best_seconds * 1e6:.1f} µs  {best}", flush=True
    )
    return best


def candidates(table: Mapping[str, Any]) -> Iterable[dict[str, int]]:
    """Configurations that a table lists: whole ones, or all combinations of values by name."""
    listed = table.get("candidates", [])
    if isinstance(listed, list):
        return listed
    return (dict(zip(listed, values)) for values in product(*listed.values()))


def _with_rules(table: Mapping[str, Any], kernel: str, winners: Winners) -> dict[str, Any]:
    new = dict(table)
    for arch in {arch for name, arch, _ in winners if name == kernel}:
        found = [(dict(s), t) for (name, a, s), t in winners.items() if (name, a) == (kernel, arch)]
        new[arch] = rules(found, table.get("ranged", []))
    return new


def rules(
    found: Sequence[tuple[Mapping[str, int | str], dict[str, int]]], ranged: Sequence[str]
) -> list[dict[str, Any]]:
    """Rules that give each measured shape its configuration, and shapes between the nearer's.

    ``ranged`` sizes extend to the geometric mean with the next measured one, the outermost to all.
    Others match exactly. All shapes have the same names.
    """
    names = sorted(found[0][0], key=lambda name: name in ranged)
    made = []
    for shape, config in sorted(found, key=lambda pair: [pair[0][name] for name in names]):
        where: dict[str, Any] = {}
        alike = [other for other, _ in found]
        for name in names:
            value = shape[name]
            where[name] = value if isinstance(value, str) else [value, value]
            if name in ranged:
                where[name] = _nearest(sorted({other[name] for other in alike}), value)
            alike = [other for other in alike if other[name] == value]
        made.append({"where": where, "tile": config})
    return made


def _nearest(measured: Sequence[Any], value: Any) -> list[int]:
    """The first and the last size that is nearer to this one than to another measured one."""
    edges = [0, *(int((a * b) ** 0.5) + 1 for a, b in pairwise(measured)), 2**31]
    place = measured.index(value)
    return [edges[place], edges[place + 1] - 1]


def tables_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables by kernel as JSON, one rule a line."""
    kernels = []
    for kernel, table in tables.items():
        lines = []
        for name, value in table.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                inner = ",\n".join(f"      {json.dumps(item)}" for item in value)
                lines.append(f"    {json.dumps(name)}: [\n{inner}\n    ]")
            else:
                lines.append(f"    {json.dumps(name)}: {json.dumps(value)}")
        kernels.append(f"  {json.dumps(kernel)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(kernels) + "\n}\n"
