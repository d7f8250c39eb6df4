"""Which backend serves each op of the kernels, and why those before it do not."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

import torch

from scalefold.ops.kernels import kernel_ops, why_not

logger = logging.getLogger(__name__)


class OpBackend(NamedTuple):
    """The backend of an operation on a device."""

    op: str
    backend: str  # its name in the op's list; mostly ``hopper``, ``triton`` or ``torch``
    passed_over: Mapping[str, str]  # those preferred to it, and why each does not serve


def backends_on(device: torch.device) -> list[OpBackend]:
    """The backends of all ops on a device. A backend may still refuse a single call.

    Empty where no kernels run: plain PyTorch serves all ops there.
    """
    if why_not(device) is not None:
        return []
    kernel_ops()  # imports all kernels, which makes their lists of backends known
    found = []
    for op, reasons in import_module("scalefold_kernels.backends").on_device(device).items():
        passed_over: dict[str, str] = {}
        for name, reason in reasons.items():
            if reason is None:
                found.append(OpBackend(op, name, passed_over))
                break
            passed_over[name] = reason
    return found


def log_backends() -> None:
    """Log which backends have served calls in this process; nothing where no kernel ran."""
    backends = sys.modules.get("scalefold_kernels.backends")
    if backends is None:
        return
    served: dict[tuple[str, str], Mapping[str, str]] = {
        (call.op, call.backend): call.passed_over for call in backends.report()
    }
    if served:
        logger.info("kernels: %s", ", ".join(f"{op} by {name}" for op, name in served))
    for (op, name), passed_over in served.items():
        for other, reason in passed_over.items():
            logger.info("kernels: %s by %s, since %s %s", op, name, other, reason)
