"""Averages over the entries that a mask keeps."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def masked_mean(value: Tensor, mask: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    """Mean of ``value`` over ``dims``, weighted with ``mask``.

    Parameters
    ----------
    value : Tensor
    mask : Tensor
        Broadcasts to the shape of ``value``.
    dims : sequence of int
    eps : float
        Added to the number of entries: an empty mask gives 0, and no NaN in the gradient.
    """
    mask = mask.expand_as(value)
    return (mask * value).sum(tuple(dims)) / (eps + mask.sum(tuple(dims)))
