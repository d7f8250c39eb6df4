"""Products of triangle multiplication by the library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scalefold_kernels.ops.triangle.arguments import Product


def products(todo: Sequence[Product]) -> list[Tensor]:
    """Products (C, B, rows, columns), contiguous."""
    return [torch.bmm(x.flatten(0, 1), y.flatten(0, 1)).unflatten(0, x.shape[:2]) for x, y in todo]
