"""All cases: each module here is one op's, and its ``cases()`` lists them."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

from scalefold_kernels import WITHOUT_TRITON
from scalefold_kernels.bench.case import KernelCase

_ODD = "odd sizes"


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
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    for op in ops:
        if op not in known:
            near = "".join(f"; did you mean {n}?" for n in get_close_matches(op, known, n=1))
            raise LookupError(f"no benchmark of {op}{near} There are {', '.join(known)}")
    found = [case for op in ops or known for case in import_module(f"{__name__}.{op}").cases()]
    kept = [
        case
        for case in found
        if (any(text in case.name for text in texts) if texts else odd or case.setting != _ODD)
    ]
    if not kept:
        wanted, names = " or ".join(map(repr, texts)), sorted({case.name for case in found})
        raise LookupError(f"no shape contains {wanted}; there are: {'; '.join(names)}")
    return kept
