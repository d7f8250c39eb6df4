"""All cases of all ops."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

import scalefold.bench.kernels as package
from scalefold.bench.kernels.case import KernelCase
from scalefold.errors import InputError
from scalefold.ops.triton import WITHOUT_TRITON


def all_cases(ops: Sequence[str] = (), texts: Sequence[str] = ()) -> list[KernelCase]:
    """The cases of these ops (all, if none is named) whose shape or setting holds one of the texts.

    Raises
    ------
    InputError
        There is no such op, or nothing is left; or Triton is not installed.
    """
    if find_spec("triton") is None:
        raise InputError(WITHOUT_TRITON)
    found = list(_everything())
    known = sorted({case.op for case in found})
    unknown = sorted(set(ops) - set(known))
    if unknown:
        near = [name for op in unknown for name in get_close_matches(op, known, n=1)]
        meant = f", did you mean {' or '.join(near)}?" if near else "."
        raise InputError(
            f"no benchmark of {', '.join(unknown)}{meant} There are {', '.join(known)}"
        )
    kept = [
        case
        for case in found
        if (not ops or case.op in ops) and chosen(case.setting, case.shape, texts)
    ]
    if not kept:
        shapes = sorted({f"{case.setting}, {case.shape}" for case in found})
        wanted = " or ".join(map(repr, texts))
        raise InputError(f"no shape contains {wanted}; there are: {'; '.join(shapes)}")
    return kept


def chosen(setting: str, shape: str, texts: Sequence[str]) -> bool:
    """Whether the name of a case holds one of the texts; of none, it does."""
    return not texts or any(text in f"{setting}, {shape}" for text in texts)


def find_case(op: str, setting: str, shape: str) -> KernelCase:
    """The one case of this op, setting and shape."""
    (found,) = (c for c in _everything() if (c.op, c.setting, c.shape) == (op, setting, shape))
    return found


def _everything() -> Iterator[KernelCase]:
    for module in pkgutil.iter_modules(package.__path__):
        loaded = import_module(f"{package.__name__}.{module.name}")
        if hasattr(loaded, "cases"):
            yield from loaded.cases()
