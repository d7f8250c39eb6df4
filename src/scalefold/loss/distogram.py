"""Distogram loss (Suppl. sec. 1.9.8). Legend: B samples, N residues, C bins."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from scalefold.loss.cross_entropy import bin_squared_distance, softmax_cross_entropy
from scalefold.loss.masked import masked_mean

FIRST_BREAK_ANGSTROM: Final = 2.3125
LAST_BREAK_ANGSTROM: Final = 21.6875
_EPS: Final = 1e-6


def distogram_loss(logits: Tensor, pseudo_beta: Tensor, pseudo_beta_mask: Tensor) -> Tensor:
    """Cross-entropy of the binned C-beta distances, mean over all pairs, i = j included.

    Parameters
    ----------
    logits : Tensor, shape (B, N, N, C)
    pseudo_beta : Tensor, shape (B, N, 3)
        C-beta positions (C-alpha of glycine), Å.
    pseudo_beta_mask : Tensor, shape (B, N)

    Returns
    -------
    Tensor, shape (B,)
    """
    difference = pseudo_beta[:, :, None, :] - pseudo_beta[:, None, :, :]
    true_bin = bin_squared_distance(
        difference.square().sum(-1), FIRST_BREAK_ANGSTROM, LAST_BREAK_ANGSTROM, logits.shape[-1]
    )
    pair_mask = pseudo_beta_mask[:, :, None] * pseudo_beta_mask[:, None, :]
    return masked_mean(softmax_cross_entropy(logits, true_bin), pair_mask, (1, 2), _EPS)
