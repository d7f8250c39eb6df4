"""Torsion angle loss (Suppl. Alg. 27): side-chain angles, and length of the raw angle vectors.

Legend: B samples, N residues, L structure module layers.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from scalefold.loss.masked import masked_mean

CHI_WEIGHT: Final = 0.5
ANGLE_NORM_WEIGHT: Final = 0.01
_EPS_NORM: Final = 1e-6  # under the root of the length
_EPS_MEAN: Final = 1e-10


def torsion_loss(
    angles: Tensor,
    unnormalized_angles: Tensor,
    true_chi: Tensor,
    chi_mask: Tensor,
    chi_is_pi_periodic: Tensor,
    seq_mask: Tensor,
) -> Tensor:
    """Squared chord between predicted and true chi angles, plus a pull of raw angles to length 1.

    Of a chi angle that a half turn leaves unchanged (Asp, Glu, Phe, Tyr) the nearer of both true
    values counts. Backbone torsions enter the second part only.

    Parameters
    ----------
    angles, unnormalized_angles : Tensor, shape (L, B, N, 7, 2)
        (sin, cos) of omega, phi, psi, chi1-4, after and before normalisation.
    true_chi : Tensor, shape (B, N, 4, 2)
        (sin, cos).
    chi_mask : Tensor, shape (B, N, 4)
    chi_is_pi_periodic : Tensor, shape (B, N, 4)
        1 where the naming of the group is ambiguous.
    seq_mask : Tensor, shape (B, N)

    Returns
    -------
    Tensor, shape (B,)
        0.5 times the first plus 0.01 times the second part; both means over residues and layers.
    """
    predicted = angles[..., 3:, :]
    # A half turn changes the sign of sine and cosine.
    other = (1.0 - 2.0 * chi_is_pi_periodic)[..., None] * true_chi
    squared_chord = torch.minimum(
        (true_chi - predicted).square().sum(-1), (other - predicted).square().sum(-1)
    )
    chi = masked_mean(squared_chord, chi_mask, (0, 2, 3), _EPS_MEAN)
    norm = torch.sqrt(unnormalized_angles.square().sum(-1) + _EPS_NORM)
    angle_norm = masked_mean((norm - 1.0).abs(), seq_mask[..., None], (0, 2, 3), _EPS_MEAN)
    return CHI_WEIGHT * chi + ANGLE_NORM_WEIGHT * angle_norm
