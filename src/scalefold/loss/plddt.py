"""pLDDT loss (Suppl. sec. 1.9.6). Legend: B samples, N residues, C bins."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from scalefold.loss.cross_entropy import softmax_cross_entropy
from scalefold.loss.lddt import lddt_per_residue
from scalefold.loss.masked import masked_mean

_EPS: Final = 1e-8


def plddt_loss(logits: Tensor, predicted_ca: Tensor, true_ca: Tensor, ca_mask: Tensor) -> Tensor:
    """Cross-entropy of each residue's binned lDDT-Ca of the predicted structure.

    The structure gets no gradient: the head learns to judge it.

    Parameters
    ----------
    logits : Tensor, shape (B, N, C)
        Over C equal bins of [0, 1].
    predicted_ca, true_ca : Tensor, shape (B, N, 3)
    ca_mask : Tensor, shape (B, N)

    Returns
    -------
    Tensor, shape (B,)
    """
    num_bins = logits.shape[-1]
    score = lddt_per_residue(predicted_ca, true_ca, ca_mask)
    true_bin = torch.floor(score * num_bins).long().clamp(max=num_bins - 1)
    return masked_mean(softmax_cross_entropy(logits, true_bin), ca_mask, (1,), _EPS)
