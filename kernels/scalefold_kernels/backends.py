"""The choice of a backend, the same for all ops.

Each op has an ordered list of backends, and the first that serves a call runs::

    _BACKENDS = Backends("residual_linear", __package__, HOPPER, TRITON, TORCH)

    backend = _BACKENDS.choose("forward", x.device, update, x, h, weight)
    out = backend.forward(x, h, weight, bias, update)

A backend is a module of the op's folder. Its kind says which devices it runs on. It may have a
function ``why_not(function, *arguments)``, which gives the reason why it does not serve a call, or
None. A module that lacks the function is passed over: forward and backward may have different
backends. A module is imported when its kind runs for the first time: Gluon only on its GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch

from scalefold_kernels import gpu

_PRECONDITIONS: dict[str, Callable[[torch.device], str | None]] = {
    "hopper": gpu.why_not_hopper,
    "triton": gpu.why_not_triton,
    "torch": lambda _: None,
}
"""By kind of backend: why it does not run on a device, or None."""


class Backend(NamedTuple):
    """One entry of an op's list."""

    name: str  # of the module, within the op's folder, and in reports
    kind: str  # hopper (Gluon, for H100 and H200), triton (for any GPU) or torch (library calls)


HOPPER, TRITON, TORCH = (Backend(kind, kind) for kind in _PRECONDITIONS)
"""Backends named after their kind."""


@dataclass(frozen=True)
class Served:
    """A backend that has served calls of an op in this process."""

    op: str
    function: str  # such as ``forward``
    backend: str
    passed_over: Mapping[str, str]  # those before it, and why each did not serve the last call


class Backends:
    """The ordered backends of one op, the preferred one first.

    ``op`` is its name in reports, ``folder`` its ``__package__``, which the modules are in.
    """

    def __init__(self, op: str, folder: str, *backends: Backend) -> None:
        self.op, self.folder, self.backends = op, folder, backends
        self.served: dict[tuple[str, str], Served] = {}
        _OPS.append(self)

    def choose(self, function: str, device: torch.device, *arguments: Any) -> ModuleType:
        """The first backend that serves a call of this function, of tensors on a device.

        ``arguments`` are what the backends' ``why_not`` takes after the function's name.
        Raises ValueError where no backend serves the call; the message has each one's reason.
        """
        reasons: dict[str, str] = {}
        for name, kind in self.backends:
            reason = why_not_on(kind, device)
            if reason is None:
                module = import_module(f"{self.folder}.{name}")
                reason = _why_not(module, function, arguments)
                if reason is None:
                    self.served[function, name] = Served(self.op, function, name, reasons)
                    return module
            reasons[name] = reason
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise ValueError(f"no backend serves {function} of {self.op}: {listed}")


_OPS: list[Backends] = []


def why_not_on(kind: str, device: torch.device) -> str | None:
    """Why backends of a kind do not run on a device, or None."""
    return _PRECONDITIONS[kind](device)


def _why_not(module: ModuleType, function: str, arguments: tuple[Any, ...]) -> str | None:
    if not hasattr(module, function):
        return f"has no {function}"
    if not hasattr(module, "why_not"):
        return None
    reason: str | None = module.why_not(function, *arguments)
    return reason


def report() -> list[Served]:
    """Which backends have served the ops' calls in this process, in the order of the ops."""
    return [served for op in _OPS for served in op.served.values()]


def on_device(device: torch.device) -> dict[str, dict[str, str | None]]:
    """For each op that is imported: its backends in order, and why each does not run on a device.

    A backend whose reason is None may still refuse a call by its arguments.
    """
    return {op.op: {name: why_not_on(kind, device) for name, kind in op.backends} for op in _OPS}
