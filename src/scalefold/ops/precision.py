"""The type of reductions."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for narrower types, else the type itself (float64 stays)."""
    return torch.promote_types(dtype, torch.float32)
