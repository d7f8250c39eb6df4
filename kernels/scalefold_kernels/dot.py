"""What launches tell kernels of their matrix products (``tl.dot``)."""

from __future__ import annotations

import torch
import triton


def block(size: int) -> int:
    """Smallest block that holds ``size`` and that a matrix product takes."""
    return max(16, triton.next_power_of_2(size))


def precision(dtype: torch.dtype) -> str:
    """``input_precision``: no float32 is rounded to TF32; of no consequence for narrower types."""
    return "ieee" if dtype == torch.float32 else "tf32"
