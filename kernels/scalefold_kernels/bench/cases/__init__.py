"""All cases: each module here is one op's, and its ``cases()`` lists them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

from scalefold_kernels import WITHOUT_TRITON
from scalefold_kernels.bench.case import KernelCase


def all_cases(
    ops: Sequence[str] = (), texts: Sequence[str] = (), *, odd: bool = False
) -> list[KernelCase]:
    """The cases of some ops, or of all, whose setting or shape holds one of the texts.

    Parameters
    ----------
    ops, texts : sequence of str
        Empty for all.
    odd : bool
        With the cases of odd sizes; they are there also where a text names them.

    Raises
    ------
    LookupError
        There is no such op or shape, or Triton is not installed.
    """
    if find_spec("triton") is None:
        raise LookupError(WITHOUT_TRITON)
    found = list(_everything())
    known = sorted({case.op for case in found})
    for op in ops:
        if op not in known:
            near = "".join(f"; did you mean {n}?" for n in get_close_matches(op, known, n=1))
            raise LookupError(f"no benchmark of {op}{near} There are {', '.join(known)}")
    kept = [
        case
        for case in found
        if (not ops or case.op in ops)
        and chosen(case.setting, case.shape, texts)
        and (odd or texts or case.setting != "odd sizes")
    ]
    if not kept:
        shapes = sorted({f"{case.setting}, {case.shape}" for case in found})
        wanted = " or ".join(map(repr, texts))
        raise LookupError(f"no shape contains {wanted}; there are: {'; '.join(shapes)}")
    return kept


def chosen(setting: str, shape: str, texts: Sequence[str]) -> bool:
    """Whether the name of a case holds one of the texts, if there are any."""
    return not texts or any(text in f"{setting}, {shape}" for text in texts)


def find_case(op: str, setting: str, shape: str) -> KernelCase:
    """The one case of this op, setting and shape."""
    (found,) = (c for c in _everything() if (c.op, c.setting, c.shape) == (op, setting, shape))
    return found


def _everything() -> Iterator[KernelCase]:
    for module in pkgutil.iter_modules(__path__):
        yield from import_module(f"{__name__}.{module.name}").cases()
