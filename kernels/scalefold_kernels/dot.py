"""Options for ``tl.dot``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ON_AMD = torch.version.hip is not None

SMALL = tl.constexpr("ieee" if ON_AMD else "tf32x3")
"""``input_precision`` of small float32 products: float32's on AMD, elsewhere almost that."""


def block(size: int) -> int:
    """Smallest block that holds ``size`` and that a matrix product takes."""
    return max(16, triton.next_power_of_2(size))


def precision(dtype: torch.dtype) -> str:
    """``input_precision``: float32 is never rounded to TF32. Narrower types ignore it."""
    return "ieee" if dtype == torch.float32 or ON_AMD else "tf32"
