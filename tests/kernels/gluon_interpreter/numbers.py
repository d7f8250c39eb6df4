"""Triton's types of numbers in numpy: in registers, and as bits in memory.

numpy has no bfloat16. In registers one is the float32 of the same value; in memory it is the upper
half of that float32's bits.
"""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray

REGISTERS: dict[tl.dtype, type[np.generic]] = {
    tl.int1: np.bool_,
    tl.int8: np.int8,
    tl.int16: np.int16,
    tl.int32: np.int32,
    tl.int64: np.int64,
    tl.uint8: np.uint8,
    tl.uint16: np.uint16,
    tl.uint32: np.uint32,
    tl.uint64: np.uint64,
    tl.float16: np.float16,
    tl.bfloat16: np.float32,
    tl.float32: np.float32,
    tl.float64: np.float64,
}

MEMORY = REGISTERS | {tl.bfloat16: np.uint16}

OF_TORCH = {
    torch.bool: tl.int1,
    torch.uint8: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}

_SMALLEST_NORMAL = np.float32(2.0**-126)


def itemsize(dtype: tl.dtype) -> int:
    """Bytes in memory."""
    return np.dtype(MEMORY[dtype]).itemsize


def cast(data: NDArray, dtype: tl.dtype) -> NDArray:
    """Values as they are in registers, rounded to a type."""
    if dtype == tl.int1:
        return np.asarray(data != 0)
    data = np.asarray(data).astype(REGISTERS[dtype])
    return rounded(data) if dtype == tl.bfloat16 else data


def rounded(data: NDArray) -> NDArray:
    """float32 to the nearest bfloat16, to the even one of two; NaN stays NaN."""
    data = np.asarray(data, np.float32)
    bits = data.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(data), np.float32("nan"), nearest.view(np.float32))


def to_memory(data: NDArray, dtype: tl.dtype) -> NDArray:
    """Values in registers to bits in memory."""
    if dtype == tl.bfloat16:
        return (data.view(np.uint32) >> 16).astype(np.uint16)
    return data


def from_memory(data: NDArray, dtype: tl.dtype) -> NDArray:
    """Inverse of `to_memory`; always a copy."""
    if dtype == tl.bfloat16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.copy()


def flushed(data: NDArray) -> NDArray:
    """Subnormal numbers to 0, as instructions with ``.ftz`` have them."""
    return np.where(np.abs(data) < _SMALLEST_NORMAL, np.float32(0), data)
