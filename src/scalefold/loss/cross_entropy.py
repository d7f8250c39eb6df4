"""Cross-entropy of logits against bin numbers, and the bins of distances."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def softmax_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy in nats.

    Parameters
    ----------
    logits : Tensor, shape (..., C)
    target : Tensor, shape (...), int64
        In [0, C).

    Returns
    -------
    Tensor, shape (...)
    """
    # The flat form's backward has no atomic additions, unlike that of a gather.
    flat = functional.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none")
    return flat.view(target.shape)


def bin_squared_distance(
    squared_distance: Tensor, first_break: float, last_break: float, num_bins: int
) -> Tensor:
    """Number of the bin that a distance falls in.

    ``num_bins - 1`` equidistant breaks; the first bin is open below, the last above, and a distance
    equal to a break belongs to the lower bin. Squares are compared, so that no root is needed.

    Parameters
    ----------
    squared_distance : Tensor, shape (...)
        Å^2.
    first_break, last_break : float
        Å.

    Returns
    -------
    Tensor, shape (...), int64
    """
    breaks = torch.linspace(
        first_break,
        last_break,
        num_bins - 1,
        dtype=squared_distance.dtype,
        device=squared_distance.device,
    )
    return torch.bucketize(squared_distance, breaks * breaks)
