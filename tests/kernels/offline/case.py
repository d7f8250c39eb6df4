"""One configuration of a kernel: written down, or noted from a launch on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

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


_KINDS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.int8: "i8",
}


def recorded(
    module: ModuleType, name: str, launch: Callable[[], Any], described: str, arch: str
) -> CompileCase:
    """The one launch of the kernel ``module.name`` that a function makes of tensors without memory.

    ``launch`` runs with a stand-in for the kernel that notes the arguments.
    """
    kernel, calls = getattr(module, name), []

    class Note:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **kwargs: calls.append((args, kwargs))

    with patch.object(module, name, Note()):
        launch()
    ((args, constexprs),) = calls
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
        return f"*{_KINDS[value.dtype]}:16"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        if value == 1:
            return "=1"
        return "i32:16" if value % 16 == 0 else "i32"
    return f"tensordesc<{_KINDS[value.base.dtype]}{value.block_shape},{value.layout!r}>"
