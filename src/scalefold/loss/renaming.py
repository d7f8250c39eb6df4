"""The better of both namings of 180°-symmetric side-chain groups (Suppl. Alg. 26).

Legend: B samples, N residues.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalefold.chem.residues import ATOM14_IS_AMBIGUOUS
from scalefold.features.contract import Features
from scalefold.geometry.rigid import Rigid

_EPS: Final = 1e-10
# Ambiguous atoms lie in a few neighbouring atom14 slots only: 4 rows of distances instead of 14.
_SLOTS: Final = np.flatnonzero(ATOM14_IS_AMBIGUOUS.any(0))
_AMBIGUOUS: Final = slice(int(_SLOTS.min()), int(_SLOTS.max()) + 1)


class RenamedTruth(NamedTuple):
    """Truth under the naming that is nearer to the prediction.

    Attributes
    ----------
    is_swapped : Tensor, shape (B, N), bool
    positions : Tensor, shape (B, N, 14, 3)
    exists : Tensor, shape (B, N, 14)
    frames : Rigid, batch shape (B, N, 8)
    """

    is_swapped: Tensor
    positions: Tensor
    exists: Tensor
    frames: Rigid


def _distance(rows: Tensor, columns: Tensor) -> Tensor:
    """(B, N, R, 3), (B, N, C, 3) -> (B, N, R, N, C)."""
    difference = rows[:, :, :, None, None, :] - columns[:, None, None, :, :, :]
    return torch.sqrt(_EPS + difference.square().sum(-1))


def _disagreement(predicted: Tensor, true: Tensor, mask: Tensor) -> Tensor:
    """Mask-weighted sum a residue of the absolute differences of two distances, (B, N)."""
    return (mask * torch.sqrt(_EPS + (predicted - true).square())).sum((-1, -2, -3))


@torch.no_grad()
def rename_ground_truth(predicted_positions: Tensor, features: Features) -> RenamedTruth:
    """Choose, for each residue, the naming whose distances fit the prediction better.

    Compared are the distances from the residue's ambiguous atoms to all unambiguous atoms of the
    chain. The choice carries no gradient.

    Parameters
    ----------
    predicted_positions : Tensor, shape (B, N, 14, 3)
        Final positions of the structure module, Å.
    features : dict
        Of it ``atom14_gt_*``, ``atom14_alt_gt_*``, ``atom14_atom_is_ambiguous``,
        ``rigidgroups_gt_frames`` and ``rigidgroups_alt_gt_frames``.
    """
    true, alternative = features["atom14_gt_positions"], features["atom14_alt_gt_positions"]
    exists, ambiguous = features["atom14_gt_exists"], features["atom14_atom_is_ambiguous"]
    rows = (exists * ambiguous)[:, :, _AMBIGUOUS]
    columns = exists * (1.0 - ambiguous)
    mask = rows[:, :, :, None, None] * columns[:, None, None, :, :]
    predicted_distance = _distance(predicted_positions[:, :, _AMBIGUOUS], predicted_positions)
    as_named = _disagreement(predicted_distance, _distance(true[:, :, _AMBIGUOUS], true), mask)
    as_swapped = _disagreement(
        predicted_distance, _distance(alternative[:, :, _AMBIGUOUS], alternative), mask
    )
    swap = as_swapped < as_named
    return RenamedTruth(
        is_swapped=swap,
        positions=torch.where(swap[..., None, None], alternative, true),
        exists=torch.where(swap[..., None], features["atom14_alt_gt_exists"], exists),
        frames=Rigid.from_4x4(
            torch.where(
                swap[..., None, None, None],
                features["rigidgroups_alt_gt_frames"],
                features["rigidgroups_gt_frames"],
            )
        ),
    )
