"""One configuration of a kernel: written down, or noted from a launch on tensors without memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime import KernelInterface

Signature = str | tuple[str, ...]
"""Type of an argument, see `CompileCase`."""


@dataclass(frozen=True)
class CompileCase:
    """One configuration of a kernel, as it is launched.

    Attributes
    ----------
    name : str
        ``<kernel> <what is special>``; unique within the op.
    kernel : triton.JITFunction
    signature : mapping of str to str or tuple of str
        Type of each argument that is no constexpr: ``*bf16:16`` (pointer, aligned to 16 bytes),
        ``i32:16`` (divisible by 16), ``i32``, ``i64``, ``fp32``, ``tensordesc<...>``; a tuple of
        them for a tuple. Arguments that are 1 at the launch (unit strides) belong into
        ``constexprs``, or are ``=1`` in a tuple: Triton makes constants of them.
    constexprs : mapping
        Value of each constexpr; ``None`` for a pointer that is absent.
    num_warps, num_stages : int
    architectures : tuple of str
        For which GPUs this configuration is meant.
    maxnreg : int or None
        The most registers that a thread may have, where the launch limits them.
    spilled_bytes : int
        Of a thread, that are known to be spilled, outside of the loops that take the time.
    """

    name: str
    kernel: Any
    signature: Mapping[str, Signature]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    architectures: tuple[str, ...] = ("sm_80", "sm_90")
    maxnreg: int | None = None
    spilled_bytes: int = 0


_TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.int8: "i8",
}

_SMS = {"sm_80": 108, "sm_86": 84, "sm_90": 132}
"""Of an A100, an RTX 3090, and an H100 or H200."""


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


class _Launches:
    """Stands in for a kernel: notes its arguments, and launches nothing."""

    def __init__(self) -> None:
        self.noted: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.noted.append((args, kwargs))


@contextmanager
def _on(arch: str) -> Iterator[None]:
    """The whole package takes tensors for those of such a GPU, and launches no kernel."""
    known = {"architecture": lambda _: arch, "num_sms": lambda _: _SMS[arch]}
    modules = [m for name, m in sys.modules.items() if name.startswith("scalefold_kernels.")]
    with ExitStack() as stack:
        for module in modules:
            for name, value in list(vars(module).items()):
                if name in known:
                    stack.enter_context(patch.object(module, name, known[name]))
                elif name.endswith("_kernel") and isinstance(value, KernelInterface):
                    stack.enter_context(patch.object(module, name, _Launches()))
        yield


def recorded(
    module: ModuleType, name: str, launch: Callable[[], Any], described: str, arch: str
) -> CompileCase:
    """The one launch of the kernel ``module.name`` that a function makes of tensors without memory.

    The function takes them for tensors on a GPU of this architecture. Nothing is launched.
    """
    kernel, launches = getattr(module, name), _Launches()
    with _on(arch), patch.object(module, name, launches):
        launch()
    ((args, constexprs),) = launches.noted
    names = ("num_warps", "num_stages", "maxnreg")
    options = {k: constexprs.pop(k) for k in names if k in constexprs}
    for name in ("debug", "sanitize_overflow"):  # change no registers
        constexprs.pop(name, None)
    signature: dict[str, Signature] = {}
    for argument, value in zip(kernel.arg_names, args, strict=False):
        if value is None or (isinstance(value, int) and value == 1):
            constexprs[argument] = value
        else:
            signature[argument] = _signature(value)
    return CompileCase(described, kernel, signature, constexprs, architectures=(arch,), **options)


def _signature(value: Any) -> Signature:
    if isinstance(value, tuple):
        return tuple(str(_signature(x)) for x in value)
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}:16"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        if value == 1:
            return "=1"
        return "i32:16" if value % 16 == 0 else "i32"
    return f"tensordesc<{_TYPES[value.base.dtype]}{value.block_shape},{value.layout!r}>"
