"""lDDT of one atom a residue, as AlphaFold2 computes it.

Local distance difference test (Mariani et al. 2013) without the check of stereochemistry: the share
of true distances below 15 Å that the prediction keeps within 0.5, 1, 2 and 4 Å. No gradient.

Legend: N points; leading dimensions are free.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

INCLUSION_RADIUS_ANGSTROM: Final = 15.0
THRESHOLDS_ANGSTROM: Final = (0.5, 1.0, 2.0, 4.0)
_EPS: Final = 1e-10


def _kept_and_counted(predicted: Tensor, true: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Share of thresholds kept, and whether the pair counts, both (..., N, N)."""
    distance, true_distance = (
        torch.sqrt(_EPS + (x[..., :, None, :] - x[..., None, :, :]).square().sum(-1))
        for x in (predicted, true)
    )
    is_other = 1.0 - torch.eye(mask.shape[-1], dtype=distance.dtype, device=mask.device)
    counted = (
        (true_distance < INCLUSION_RADIUS_ANGSTROM)
        * mask[..., :, None]
        * mask[..., None, :]
        * is_other
    )
    error = (true_distance - distance).abs()
    kept = torch.stack([error < limit for limit in THRESHOLDS_ANGSTROM]).to(distance.dtype).mean(0)
    return kept, counted


@torch.no_grad()
def lddt_per_residue(predicted: Tensor, true: Tensor, mask: Tensor) -> Tensor:
    """Score each residue, from 0 to 1.

    Parameters
    ----------
    predicted, true : Tensor, shape (..., N, 3)
        Å, one atom a residue (C-alpha).
    mask : Tensor, shape (..., N)
        1 where the true position is known.

    Returns
    -------
    Tensor, shape (..., N)
        1 for a residue without any neighbour, and for one that the mask leaves out.
    """
    kept, counted = _kept_and_counted(predicted, true, mask)
    return (_EPS + (counted * kept).sum(-1)) / (_EPS + counted.sum(-1))


@torch.no_grad()
def lddt(predicted: Tensor, true: Tensor, mask: Tensor) -> Tensor:
    """Score a chain, from 0 to 1: over all its pairs, not the mean of its residues.

    Parameters
    ----------
    predicted, true : Tensor, shape (..., N, 3)
    mask : Tensor, shape (..., N)

    Returns
    -------
    Tensor, shape (...)
        1 where no pair counts.
    """
    kept, counted = _kept_and_counted(predicted, true, mask)
    return (_EPS + (counted * kept).sum((-1, -2))) / (_EPS + counted.sum((-1, -2)))
