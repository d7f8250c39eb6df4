"""One-hot encodings, as truth values: an eighth of the memory of torch's integers, and no scatter.

The caller casts them to the type that it computes in.
"""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(index: Tensor, num_classes: int) -> Tensor:
    """Encode classes: (...), int64, to (..., num_classes), bool."""
    return index[..., None] == torch.arange(num_classes, device=index.device)


def distance_one_hot(
    rows: Tensor, columns: Tensor, min_angstrom: float, max_angstrom: float, num_bins: int
) -> Tensor:
    """Encode the distance of each pair (Suppl. Alg. 5, 32).

    Bins start at ``min_angstrom``, are equally wide, and the last, starting at ``max_angstrom``,
    is open. Closer pairs, and distances exactly on an edge, have no bin.

    Parameters
    ----------
    rows : Tensor, shape (..., I, 3), Å
    columns : Tensor, shape (..., J, 3), Å

    Returns
    -------
    Tensor, shape (..., I, J, num_bins), bool
    """
    square = ((rows[..., :, None, :] - columns[..., None, :, :]) ** 2).sum(-1, keepdim=True)
    edges = torch.linspace(
        min_angstrom, max_angstrom, num_bins, dtype=rows.dtype, device=rows.device
    )
    lower = edges**2
    upper = torch.cat([lower[1:], lower.new_full((1,), float("inf"))])
    return (square > lower) & (square < upper)
