"""Dropout on a residual update; its mask is a pure function of its key and coordinates.

The generator stands beside the kernels, which draw the same masks.
"""

from __future__ import annotations

from torch import Tensor

from scalefold_kernels.dropout.mask import Dropout, dropout_mask, hashed, kept, mix, random_bits

__all__ = ["Dropout", "dropout_mask", "hashed", "kept", "mix", "random_bits", "residual_dropout"]


def residual_dropout(
    x: Tensor, update: Tensor, key_B: Tensor, layer: int, rate: float, shared_dim: int | None
) -> Tensor:
    """``x`` plus the update with dropped elements zeroed and the rest scaled up.

    Parameters
    ----------
    x, update : Tensor, shape (B, ...)
    key_B, layer, rate, shared_dim
        See `Dropout`.
    """
    shape = list(update.shape[1:])
    if shared_dim is not None:
        shape[shared_dim] = 1
    keep = dropout_mask(key_B, layer, rate, shape)
    return x + update * (keep.to(update.dtype) * (1.0 / (1.0 - rate)))
