"""Offsets of elements in 32 or 64 bits.

Kernels count elements in 32 bits where these suffice, since 64 cost registers and instructions. A
launch with larger tensors sets the kernel's constant ``INT64``. `index` then widens the numbers
that strides are multiplied by.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

MAX_ELEMENTS_INT32 = 2**30
"""Most elements with 32-bit offsets. Half of the range is free, as tiles reach past the end."""


def needs_int64(*tensors: Tensor | None) -> bool:
    """Whether the elements of one of the tensors need 64-bit offsets."""
    return any(exceeds_int32(_extent(x)) for x in tensors if x is not None)


def exceeds_int32(size: int) -> bool:
    """Whether ``size`` elements need 64-bit offsets."""
    return size > MAX_ELEMENTS_INT32


def _extent(x: Tensor) -> int:
    """Elements of memory from the first to the last."""
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))


@triton.jit
def index(x, INT64: tl.constexpr):  # type: ignore[no-untyped-def]
    """A number that is multiplied by strides: in 64 bits if ``INT64``, else as it is."""
    if INT64:
        return tl.cast(x, tl.int64)
    else:  # noqa: RET505 (of constants)
        return x
