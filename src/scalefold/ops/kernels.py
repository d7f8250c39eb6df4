"""Which operations get GPU kernels: those of `scalefold_kernels`, which only this folder imports.

`select_ops` reads ``training.kernels`` and decides; `kernel_ops` makes the record. What else the
program wants of the kernels is below them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules, walk_packages
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from scalefold.errors import InputError
from scalefold.ops.registry import TORCH, Ops
from scalefold_kernels import WITHOUT_TRITON as WITHOUT_TRITON

if TYPE_CHECKING:
    from scalefold_kernels.ops.exchange import Inbox as Inbox
    from scalefold_kernels.ops.exchange import Parts as Parts
    from scalefold_kernels.ops.gather import Gather

logger = logging.getLogger(__name__)

Kernels = Literal["auto", "torch", "triton"] | Sequence[str]

PACKAGES: Final = frozenset(op.metadata["package"] for op in fields(Ops))
"""Names that ``training.kernels`` has for kernels of one or several operations."""


def select_ops(kernels: Kernels, device: torch.device) -> Ops:
    """Operations that a model on ``device`` is built with.

    Parameters
    ----------
    kernels : {"auto", "torch", "triton"} or list of str
        ``auto``: the kernels, or plain torch if they cannot run; one logged line says why. A list:
        the kernels of these packages alone. A warning is logged if a Hopper GPU cannot run the
        kernels made for it.

    Raises
    ------
    InputError
        Kernels that are asked for by name cannot run.
    """
    if not isinstance(kernels, str):
        kernels = _without_retired(kernels)
    if kernels == "torch" or not kernels:
        return TORCH
    obstacle = why_not(device)
    if obstacle is None:
        _warn_of_slower_kernels(device)
        return kernel_ops(PACKAGES if isinstance(kernels, str) else kernels)
    if kernels != "auto":
        asked = kernels if isinstance(kernels, str) else ", ".join(kernels)
        raise InputError(
            f"training.kernels: {asked} cannot run here: {obstacle}; set training.kernels to "
            "auto or torch for plain PyTorch"
        )
    logger.info("Plain PyTorch instead of the GPU kernels: %s", obstacle)
    return TORCH


def _without_retired(packages: Sequence[str]) -> list[str]:
    """The packages that still exist; a logged line names the others."""
    kept = [name for name in packages if name in PACKAGES]
    if retired := [name for name in packages if name not in kept]:
        logger.info("training.kernels: %s no longer have an effect", ", ".join(retired))
    return kept


def why_not(device: torch.device) -> str | None:
    """Why the kernels cannot run on this device, or None."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the kernels need an NVIDIA GPU, and the device is {device.type}"
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    reason = import_module("scalefold_kernels.gpu").why_not_triton(device)
    return None if reason is None else f"every kernel {reason}"


def triton_version() -> str | None:
    """Version of Triton, or None where it is not installed."""
    if find_spec("triton") is None:
        return None
    version: str = import_module("triton").__version__
    return version


def _warn_of_slower_kernels(device: torch.device) -> None:
    """Warn if a Hopper GPU gets the portable kernels."""
    gpu = import_module("scalefold_kernels.gpu")
    if gpu.is_hopper(device) and not gpu.has_gluon():
        logger.warning(
            "%s: the kernels for it run with Triton %s, and this is %s; those for any GPU run "
            "instead, which are slower. torch 2.11 brings Triton 3.6, torch 2.13 brings 3.7",
            torch.cuda.get_device_name(device),
            ", ".join(gpu.GLUON_VERSIONS),
            triton_version(),
        )


def select_gather(kernels: Kernels, device: torch.device) -> type[Gather] | None:
    """The kernel that gathers gradients where kernels are chosen and run, else None."""
    if kernels == "torch" or not kernels or why_not(device) is not None:
        return None
    gather: type[Gather] = import_module("scalefold_kernels.ops.gather").Gather
    return gather


def exchange_kernels() -> Any:
    """The module of the kernels by which GPUs write to each other's memory."""
    return import_module("scalefold_kernels.ops.exchange")


def kernel_ops(packages: Iterable[str] = PACKAGES) -> Ops:
    """The kernels of some packages; an operation without one is the torch reference.

    The kernels of an operation are the function of its name that a folder of
    ``scalefold_kernels/ops`` has.
    """
    ops = import_module("scalefold_kernels.ops")
    kernels: dict[str, Any] = {}
    for folder in iter_modules(ops.__path__):
        kernels |= vars(import_module(f"{ops.__name__}.{folder.name}"))
    chosen = [op.name for op in fields(Ops) if op.metadata["package"] in packages]
    return replace(TORCH, **{name: kernels[name] for name in chosen if name in kernels})


def hash_kernels_in_order() -> None:
    """Have Triton hash all kernels in one order, the same in each process.

    The hash is part of a kernel's key in the cache, and it depends on which of the functions that
    the kernel calls were hashed before it (Triton's ``DependenciesFinder``, versions 3.6 and 3.7).
    """
    package = import_module("scalefold_kernels")
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.startswith(f"{package.__name__}.bench"):
            continue
        with contextlib.suppress(ImportError):  # without Gluon
            for function in vars(import_module(module.name)).values():
                getattr(function, "cache_key", None)
