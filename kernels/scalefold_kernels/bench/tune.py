"""The tuner: each kernel's fastest tiles on this GPU, written into its op's table."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scalefold_kernels.bench.agreement import Exact, evaluate, tensors
from scalefold_kernels.bench.case import KernelCase
from scalefold_kernels.bench.run import write_text
from scalefold_kernels.bench.timing import gradients_like, input_sets, time_calls
from scalefold_kernels.tiles import Overridden, find_table, overridden, read_table, read_tables

Key = tuple[str, str, tuple[tuple[str, int | str], ...]]
"""Kernel, architecture, shape: one lookup."""

Winners = dict[Key, dict[str, int]]

_LARGEST = 2**31 - 1


def tune(
    cases: Sequence[KernelCase], dtype: torch.dtype, device: torch.device, folder: Path | None
) -> list[Path]:
    """Find the fastest candidate for every lookup that these cases make, and write the tables.

    Kernels are tuned one after the other while the rest of the op runs with the best tiles so far.
    The winners together must pass the correctness check of the case. Rules of other architectures
    stay as they are, and so do those of kernels that the cases do not reach.

    Parameters
    ----------
    cases : sequence of KernelCase
    dtype : torch.dtype
    device : torch.device
    folder : Path or None
        Where tables are written. None: where the kernels read them.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    RuntimeError
        The winners of a case are wrong.
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
    sets = input_sets(case.inputs, device, dtype)
    with torch.no_grad():
        grads = gradients_like(list(tensors(case.ours(*sets[0]))))
    in_forward = list(lookups.seen)
    evaluate(case.ours, sets[0], grads)
    # Other tiles of one kernel may ask for new shapes of another, so look again each time.
    while pending := [key for key in lookups.seen if key not in winners]:
        key = pending[0]
        if key in in_forward:
            calls = [functools.partial(case.ours, *inputs) for inputs in sets]
            context: Callable[[], Any] = torch.no_grad
        else:
            calls = [functools.partial(evaluate, case.ours, inputs, grads) for inputs in sets]
            context = torch.enable_grad
        with context():
            winners[key] = _fastest(key, calls, lookups)
        lookups.instead[key] = winners[key]
    agreement = Exact(case, device, dtype).agreement(case.ours)
    if not agreement.good:
        raise RuntimeError(
            f"{case.op}, {case.shape}: no table was written; with the fastest tiles: {agreement}"
        )


def _fastest(
    key: Key, calls: Sequence[Callable[[], object]], lookups: Overridden
) -> dict[str, int]:
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
    """The tiles that a table lists: whole ones, or all combinations of values by name."""
    listed = table.get("candidates", [])
    if isinstance(listed, list):
        return listed
    return (dict(zip(listed, values)) for values in itertools.product(*listed.values()))


def _with_rules(
    table: Mapping[str, Any], kernel: str, winners: Mapping[Key, dict[str, int]]
) -> dict[str, Any]:
    new = dict(table)
    for arch in {arch for name, arch, _ in winners if name == kernel}:
        found = [(dict(s), t) for (name, a, s), t in winners.items() if (name, a) == (kernel, arch)]
        new[arch] = rules(found, table.get("ranged", []))
    return new


def rules(
    found: Sequence[tuple[Mapping[str, int | str], dict[str, int]]], ranged: Sequence[str]
) -> list[dict[str, Any]]:
    """Rules that give each measured shape its tile, and shapes between them that of the nearer.

    Parameters
    ----------
    found : sequence of (shape, tile)
        All shapes have the same names.
    ranged : sequence of str
        Sizes that extend to the geometric mean with the next measured one, the outermost to all.
        Other names match exactly.
    """
    names = [n for n in found[0][0] if n not in ranged] + [n for n in found[0][0] if n in ranged]
    return [{"where": where, "tile": tile} for where, tile in _rules(found, names, set(ranged))]


def _rules(
    found: Sequence[tuple[Mapping[str, int | str], dict[str, int]]],
    names: Sequence[str],
    ranged: set[str],
) -> Iterable[tuple[dict[str, Any], dict[str, int]]]:
    if not names:
        yield {}, found[0][1]
        return
    name, rest = names[0], names[1:]
    values = sorted({shape[name] for shape, _ in found})
    for place, value in enumerate(values):
        where: Any = value
        if isinstance(value, int):
            where = [value, value]
        if name in ranged:
            where = [_between(values, place), _between(values, place + 1) - 1]
        inside = [(shape, tile) for shape, tile in found if shape[name] == value]
        for deeper, tile in _rules(inside, rest, ranged):
            yield {name: where} | deeper, tile


def _between(values: Sequence[Any], place: int) -> int:
    """The first size nearer to ``values[place]`` than to the one before it."""
    if place == 0:
        return 0
    if place == len(values):
        return _LARGEST + 1
    return int((values[place - 1] * values[place]) ** 0.5) + 1


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
