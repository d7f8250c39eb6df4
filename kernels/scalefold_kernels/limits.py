"""What launches can hold: offsets of 32 bits, and CTAs along a dimension of the grid.

Kernels count elements in 32 bits where these suffice, since 64 cost registers and instructions. A
launch whose tensors are larger says so by a constant of the kernel, ``INT64``, and the kernel takes
what it multiplies strides with through `index`.
"""

from __future__ import annotations

from math import prod

import triton
import triton.language as tl
from torch import Tensor

MAX_ELEMENTS_INT32 = 2**30
"""Most elements with 32-bit offsets. Half of the range is free, as tiles reach past the end."""

MAX_ROWS = 2**31 - 2**20
"""Rows or positions, numbered by 32 bits in all kernels; the rest is for tiles beyond the end."""

MAX_GRID = 65535
"""Along any dimension of a launch but the first."""


def needs_int64(*tensors: Tensor | None) -> bool:
    """Whether the elements of one of the tensors need 64-bit offsets."""
    return any(exceeds_int32(_extent(x)) for x in tensors if x is not None)


def exceeds_int32(size: int) -> bool:
    """Whether ``size`` elements need 64-bit offsets."""
    return size > MAX_ELEMENTS_INT32


def _extent(x: Tensor) -> int:
    """Elements of memory from the first to the last."""
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))


def check_rows(x: Tensor) -> None:
    """For kernels of rows: all dimensions of ``x`` but the last.

    Raises
    ------
    ValueError
        There are more of them than kernels can number.
    """
    rows = prod(x.shape[:-1])
    if rows > MAX_ROWS:
        raise ValueError(
            f"{rows} rows of shape {tuple(x.shape)}; kernels take {MAX_ROWS}: split them"
        )


def check_batch(op: str, x: Tensor) -> None:
    """For launches that have samples along another dimension than the first.

    Raises
    ------
    ValueError
        The first dimension of ``x`` is larger than such a launch can be.
    """
    if len(x) > MAX_GRID:
        raise ValueError(
            f"{op} of a tensor {tuple(x.shape)}: {len(x)} samples; the kernels take "
            f"{MAX_GRID} at a time: split the batch"
        )


@triton.jit
def index(x, INT64: tl.constexpr):  # type: ignore[no-untyped-def]
    """A number that is multiplied by strides: in 64 bits if ``INT64``, else as it is."""
    if INT64:
        return tl.cast(x, tl.int64)
    else:  # noqa: RET505 (of constants)
        return x
