"""torch.compile for the many small operations of structure module, embedders and losses.

A pass launches a thousand operations of a few microseconds on small float32 tensors there;
compiled, neighbours become one kernel. The trunk has its own kernels and is not compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, cast

import torch

from scalefold.errors import InputError
from scalefold.loss import violation
from scalefold.model.assembly import as_written
from scalefold.ops.kernels import why_not

logger = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_VARIANTS: Final = 64
"""Shapes, and passes with and without gradients, that a process may compile a function for."""


def choose_compilation(
    setting: Literal["auto"] | bool, device: torch.device
) -> Callable[[_Function], _Function]:
    """Decide on ``training.compile``: return `torch.compile`, or a function that changes nothing.

    Each new shape is compiled at its first use. This raises the number of variants that torch
    allows in the process.

    Raises
    ------
    InputError
        If compilation is asked for where it cannot be.
    """
    obstacle = why_not(device)
    if setting is True and obstacle is not None:
        raise InputError(
            "training.compile is on, but the Triton kernels that compiled code is made of cannot "
            f"run here: {obstacle}; set it to auto or off"
        )
    if setting is False or obstacle is not None:
        return as_written
    logger.info("structure module, embedders and losses are compiled at first, for up to a minute")
    torch.compiler.config.recompile_limit = _VARIANTS
    # Here and not where they are: it imports the compiler, for more than a second.
    torch.compiler.assume_constant_result(violation.clash_tables)
    # Softmax over some hundred elements fits into one kernel; online, it would be three.
    options: dict[str, Any] = {"online_softmax": False}

    def compiled(function: _Function) -> _Function:
        whole = torch.compile(function, fullgraph=True, dynamic=False, options=options)
        return cast(_Function, whole)

    return compiled
