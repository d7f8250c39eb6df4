"""Checks of an op's arguments: each raises a ValueError whose message gives both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Types that kernels take."""

MAX_ROWS: Final = 2**31 - 2**20
"""Rows or positions, numbered by 32 bits in all kernels; the rest is for tiles beyond the end."""

MAX_GRID: Final = 65535
"""Along any dimension of a launch but the first."""


def check_shapes(call: str, named: Iterable[tuple[str, Tensor | None, Sequence[int]]]) -> None:
    """Raise ValueError for a tensor of the wrong shape; None is accepted.

    ``call`` is the op and what the shapes follow from, such as ``transition of x (2, 64)``.
    """
    for name, tensor, shape in named:
        if tensor is not None and tensor.shape != tuple(shape):
            raise ValueError(
                f"{call}: {name} has shape {tuple(tensor.shape)}, must be {tuple(shape)}"
            )


def check_types(op: str, tensors: Iterable[Tensor]) -> None:
    """Raise ValueError for tensors of several types, or of one that kernels do not take."""
    found = {x.dtype for x in tensors}
    if len(found) > 1 or not found <= {*DTYPES}:
        raise ValueError(
            f"{op} takes float32, bfloat16 or float16, the same for all tensors; found "
            f"{sorted(map(str, found))}"
        )


def check_rows(x: Tensor) -> None:
    """Raise ValueError for more rows, all dimensions but the last, than kernels can number."""
    rows = prod(x.shape[:-1])
    if rows > MAX_ROWS:
        raise ValueError(
            f"{rows} rows of shape {tuple(x.shape)}; kernels take {MAX_ROWS}: split them"
        )


def check_batch(op: str, x: Tensor) -> None:
    """Raise ValueError for more samples, the first dimension, than a launch's other dimensions."""
    if len(x) > MAX_GRID:
        raise ValueError(
            f"{op} of a tensor {tuple(x.shape)}: {len(x)} samples; the kernels take "
            f"{MAX_GRID} at a time: split the batch"
        )
