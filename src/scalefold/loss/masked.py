"""Sums over many numbers, and averages over the entries that a mask keeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def float64_sum(value: Tensor, dims: Sequence[int]) -> Tensor:
    """Sum over ``dims`` in float64, to float64.

    A term sums up to 10^7 numbers. In float32 the sum would have an error of the size of its last
    digit, however exact the numbers are.
    """
    return value.sum(tuple(dims), dtype=torch.float64)


def masked_mean(value: Tensor, mask: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    """Mean of ``value`` over ``dims``, weighted with ``mask``.

    Parameters
    ----------
    mask : Tensor
        Broadcasts to the shape of ``value``.
    eps : float
        Added to the number of entries: an empty mask gives 0, and no NaN in the gradient.

    Returns
    -------
    Tensor, float64
        Of the dimensions that are left.
    """
    mask = mask.expand_as(value)
    return float64_sum(mask * value, dims) / (eps + float64_sum(mask, dims))
