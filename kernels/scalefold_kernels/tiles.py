"""Tile tables: which configuration a kernel runs with, by architecture and class of shapes.

``<op>/tiles.json`` holds a table ``<kernel>`` for the op's ``<kernel>_kernel``::

    {
      "<kernel>": {
        "default": {"BLOCK_M": 64, "num_warps": 4, "num_stages": 2},
        "ranged": ["N"],
        "candidates": {"BLOCK_M": [64, 128], "num_warps": [4, 8], "num_stages": [2, 3]},
        "sm_90": [
          {"where": {"N": [0, 256], "C": [32, 32], "dtype": "bfloat16"},
           "tile": {"BLOCK_M": 128, "num_warps": 8, "num_stages": 2}}
        ]
      }
    }

The ``tile`` of the first rule of the architecture whose ``where`` holds is taken (a number within
the bounds, both included; a word equal); else ``default``, which must run everywhere.
A rule that no launch can meet is refused: a name that the kernel's shapes lack, or an unknown type.
``ranged`` and ``candidates`` are for the tuner alone (``python -m scalefold_kernels.bench tune``).
It rewrites the rules of the GPU that it runs on: one for each shape that the benchmark meets; a
``ranged`` size extends halfway to the next measured one, all others are exact. ``candidates`` is
either lists by name, of which all combinations are tried, or a list of whole configurations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.checks import DTYPES

Config = dict[str, int]
"""Block sizes and the like, ``num_warps`` and ``num_stages`` of a launch."""

Shape = Mapping[str, int | str]

Lookup = tuple[str, str, tuple[tuple[str, int | str], ...]]
"""Kernel, architecture, shape."""

_FOLDER = Path(__file__).parent

_LARGE = 1024
"""Example for a size without a useful upper bound."""


def architecture(device: torch.device) -> str:
    """``sm_<compute capability>`` of a CUDA device; ``cpu`` for anything else (the interpreter)."""
    if device.type != "cuda":
        return "cpu"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def find_config(kernel: str, arch: str, shape: Shape) -> Config:
    """Configuration of a launch: block sizes and Triton's options, as keyword arguments.

    ``kernel`` names the table, ``arch`` is from `architecture`, and ``shape`` has what the table's
    rules speak of: sizes, and words such as ``dtype``.
    Raises ValueError where there is no such table, or a rule has a name that ``shape`` lacks.
    """
    if _override is not None:
        return _override.config(kernel, arch, shape)
    return dict(_lookup(kernel, arch, tuple(shape.items())))


def config_for(kernel: str, x: Tensor, arch: str | None = None, **sizes: int | str) -> Config:
    """`find_config` for a tensor: its type, its GPU or the one named, and sizes by name."""
    shape = {**sizes, "dtype": dtype_name(x.dtype)}
    return find_config(kernel, arch or architecture(x.device), shape)


def dtype_name(dtype: torch.dtype) -> str:
    """A type, as rules have it."""
    return str(dtype).removeprefix("torch.")


def read_table(kernel: str) -> dict[str, Any]:
    """Return a kernel's whole table, as `find_table`."""
    return find_table(kernel)[1]


def find_table(kernel: str) -> tuple[Path, dict[str, Any]]:
    """A kernel's table, and the file that holds it.

    Raises ValueError where no file holds one.
    """
    tables = _all_tables()
    if kernel not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise ValueError(f"no tile table for kernel {kernel!r}; there are: {known}")
    return tables[kernel]


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """All tables of a file by kernel."""
    tables: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return tables


@cache
def _all_tables() -> dict[str, tuple[Path, dict[str, Any]]]:
    """File and table of every kernel."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in _FOLDER.rglob("tiles.json"):
        for kernel, table in read_tables(path).items():
            if kernel in found:
                raise ValueError(f"{path} and {found[kernel][0]} both have a table {kernel!r}")
            for _, rule in _rules(table):
                known = [dtype_name(dtype) for dtype in DTYPES]
                if (dtype := rule["where"].get("dtype", known[0])) not in known:
                    raise ValueError(
                        f"{path}: {kernel} has a rule on the type {dtype!r}; there are: {known}"
                    )
            found[kernel] = path, table
    return found


def configured(kernel: str) -> list[tuple[str, Shape, Config]]:
    """Every rule of a table as (architecture, a shape for which it holds, configuration).

    For the offline compilation. Names that a rule leaves open are not in the shape.
    """
    return [
        (arch, {name: _example(wanted) for name, wanted in rule["where"].items()}, rule["tile"])
        for arch, rule in _rules(read_table(kernel))
    ]


def _rules(table: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """All rules of a table, each with its architecture."""
    return [
        (arch, rule) for arch, value in table.items() if arch.startswith("sm_") for rule in value
    ]


def _example(wanted: str | list[int]) -> int | str:
    return wanted if isinstance(wanted, str) else min(wanted[1], max(wanted[0], _LARGE))


@cache
def _lookup(kernel: str, arch: str, shape: tuple[tuple[str, int | str], ...]) -> Config:
    (path, table), sizes = find_table(kernel), dict(shape)
    if unknown := {name for _, rule in _rules(table) for name in rule["where"]} - sizes.keys():
        raise ValueError(
            f"{path}: {kernel} has a rule on {sorted(unknown)}; the launch gives {sorted(sizes)}"
        )
    for rule in table.get(arch, []):
        if all(_holds(wanted, sizes[name]) for name, wanted in rule["where"].items()):
            return dict(rule["tile"])
    return dict(table["default"])


def _holds(wanted: str | list[int], value: int | str) -> bool:
    if isinstance(wanted, str) or isinstance(value, str):
        return value == wanted
    low, high = wanted
    return low <= value <= high


class Overridden:
    """Lookups seen while the tuner runs an op, and the configuration that one is given instead."""

    def __init__(self) -> None:
        self.seen: dict[Lookup, Config] = {}
        self.instead: dict[Lookup, Config] = {}
        self._forced: dict[str, Config] = {}

    def config(self, kernel: str, arch: str, shape: Shape) -> Config:
        """Answer a lookup."""
        key = (kernel, arch, tuple(shape.items()))
        self.seen.setdefault(key, _lookup(*key))
        return dict(self.instead.get(key) or self._forced.get(kernel) or self.seen[key])

    def force(self, kernel: str, **config: int) -> None:
        """Give every lookup of a kernel this configuration."""
        self._forced[kernel] = config


# Of the module and not of a context: autograd runs backward in a thread of its own.
_override: Overridden | None = None


@contextmanager
def overridden() -> Iterator[Overridden]:
    """Watch and replace lookups, in all threads; for the tuner and for tests."""
    global _override
    _override = Overridden()
    try:
        yield _override
    finally:
        _override = None
        _lookup.cache_clear()
        _all_tables.cache_clear()
