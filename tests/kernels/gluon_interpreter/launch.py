"""Launches of Gluon kernels on tensors of the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import FunctionType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from tests.kernels.gluon_interpreter.copies import Descriptor
from tests.kernels.gluon_interpreter.global_memory import GlobalMemory
from tests.kernels.gluon_interpreter.numbers import OF_TORCH
from tests.kernels.gluon_interpreter.program import Program, set_current
from tests.kernels.gluon_interpreter.tensor import Tensor, to_tensor
from tests.kernels.gluon_interpreter.translation import translated
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@contextmanager
def interpreted(seed: int = 0) -> Iterator[set[FunctionType]]:
    """Gluon kernels that are launched run here; gives the functions of those that were.

    ``seed``: of the order in which partitions and copies take their turns.
    """
    launched: set[FunctionType] = set()
    random = Random(seed)

    def run(kernel: GluonJITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launched.add(kernel.fn)
        _launch(kernel, grid, random, args, options)

    with patch.object(GluonJITFunction, "run", run):
        yield launched


def _launch(
    kernel: GluonJITFunction,
    grid: Any,
    random: Random,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    signature = inspect.signature(kernel.fn)
    named = {name: value for name, value in options.items() if name in signature.parameters}
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    tensors: list[torch.Tensor] = []
    values = {
        param.name: bound.arguments[param.name]
        if param.is_constexpr
        else _argument(bound.arguments[param.name], param.do_not_specialize, tensors)
        for param in kernel.params
    }
    memory = GlobalMemory(tensors)
    grid = (*grid, 1, 1)[:3]
    body = translated(kernel)
    for index in np.ndindex(grid):
        program = Program(index, grid, options.get("num_warps", 4), memory, random)
        set_current(program)
        try:
            with np.errstate(all="ignore"):
                body(**values)
                program.end()
        finally:
            set_current(None)


def _argument(x: Any, is_number: bool, tensors: list[torch.Tensor]) -> Any:
    """As a kernel sees it. A 1 is a constant, unless it is said to be a number."""
    if isinstance(x, torch.Tensor):
        tensors.append(x)
        return Tensor(x.data_ptr(), tl.pointer_type(OF_TORCH[x.dtype]))
    if isinstance(x, TensorDescriptor):
        return Descriptor(x)
    if isinstance(x, tuple):
        return tuple(_argument(item, is_number, tensors) for item in x)
    if x is None or (type(x) is int and x == 1 and not is_number):
        return x
    return to_tensor(x)
