"""Global distance test (GDT; Zemla 2003, doi:10.1093/nar/gkg571) of superposed structures.

For each cutoff the largest share of residues that some superposition brings within it; GDT-TS is
the mean over the cutoffs 1, 2, 4 and 8 Å.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

GDT_CUTOFFS_ANGSTROM: Final = (1.0, 2.0, 4.0, 8.0)


def most_within(squared_distances: Tensor) -> Tensor:
    """For each cutoff, the most residues within it in any of several superpositions.

    Parameters
    ----------
    squared_distances : Tensor, shape (K, P)
        Å^2, of P corresponding residues in K superpositions.

    Returns
    -------
    Tensor, shape (4,), int64
        One number a cutoff of ``GDT_CUTOFFS_ANGSTROM``.
    """
    counts = [(squared_distances <= cutoff**2).sum(-1).max() for cutoff in GDT_CUTOFFS_ANGSTROM]
    return torch.stack(counts)


def gdt_ts(most: Tensor, length: int) -> float:
    """GDT-TS, 0 to 1, from ``most_within`` and the reference's number of residues."""
    return float(most.double().mean()) / length
