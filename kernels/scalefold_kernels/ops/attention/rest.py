"""The rest of a result: its rounding error as a byte, the next bits of the float32.

A float32's bits, as an integer, count its steps. Those between a result and the rounded one are at
most half of those between two rounded ones. Their 8 highest bits are kept, and read as the middle
of what they may stand for: 2^-7 of the rounding's error is left. No scale is needed, and the
sign shows in which direction a result was rounded.

The functions are for both of Triton's languages.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

OF_BFLOAT16 = tl.constexpr(8)

SHIFTS = {torch.bfloat16: OF_BFLOAT16.value, torch.float16: 5}
"""Bits of a float32 after the byte, by the type that results are rounded to."""


@triton.jit
def byte_of_rest(exact, rounded, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Byte for ``exact - rounded``: a float32, and the same one rounded."""
    steps = exact.to(tl.int32, bitcast=True) - rounded.to(tl.int32, bitcast=True)
    # A tie may be rounded down: the difference, just half a step, is one too many for a byte.
    steps = tl.minimum(steps, (128 << SHIFT) - 1)
    return (steps >> SHIFT).to(tl.int8)


@triton.jit
def with_rest(rounded, byte, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Recover the float32 ``exact`` of `byte_of_rest`, as far as a byte tells."""
    steps = (byte.to(tl.int32) << SHIFT) + (1 << (SHIFT - 1))
    return (rounded.to(tl.int32, bitcast=True) + steps).to(tl.float32, bitcast=True)
