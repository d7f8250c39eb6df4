"""Kernels' Python functions, with what stands for Triton's language in the place of it."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import triton.language as tl
from tests.kernels.gluon_interpreter.language import MODULES, builtin, loop_range

_translated: dict[FunctionType, FunctionType] = {}


def translated(function: Any) -> Callable[..., Any]:
    """A function of ``triton.jit`` or ``gluon.jit``, as Python runs it."""
    original: FunctionType = function.fn
    if original not in _translated:
        names: dict[str, Any] = {"range": loop_range}
        copy = FunctionType(
            original.__code__, names, original.__name__, original.__defaults__, original.__closure__
        )
        # Before the others, which may call it.
        _translated[original] = copy
        for name in _names(original.__code__) & original.__globals__.keys():
            names[name] = _stand_in(original.__globals__[name])
    return _translated[original]


def _names(code: CodeType) -> set[str]:
    """Of what is not local, in nested code too."""
    nested = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_names, nested))


def _stand_in(x: Any) -> Any:
    if isinstance(x, tl.constexpr):
        return x.value
    if isinstance(x, ModuleType):
        return MODULES.get(x.__name__) or _Module(x)
    if getattr(x, "__triton_builtin__", False):
        return builtin(x)
    # Both kinds of Triton's have the function as ``fn``; so have functions of constants, which are
    # called as they are.
    jitted = type(x).__name__ in ("JITFunction", "GluonJITFunction", "InterpretedFunction")
    return translated(x) if jitted else x


class _Module:
    """A module of this package, whose functions a kernel calls by ``module.function``."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _stand_in(getattr(self._module, name))
