"""Masked MSA loss (Suppl. sec. 1.9.9). Legend: B samples, S MSA rows, N residues."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from scalefold.loss.cross_entropy import softmax_cross_entropy
from scalefold.loss.masked import masked_mean

_EPS: Final = 1e-8


def masked_msa_loss(logits: Tensor, true_msa: Tensor, bert_mask: Tensor) -> Tensor:
    """Cross-entropy of the true symbols, mean over the positions chosen for masking.

    Parameters
    ----------
    logits : Tensor, shape (B, S, N, 23)
    true_msa : Tensor, shape (B, S, N), int64
        Symbols before masking.
    bert_mask : Tensor, shape (B, S, N)

    Returns
    -------
    Tensor, shape (B,)
    """
    return masked_mean(softmax_cross_entropy(logits, true_msa), bert_mask, (1, 2), _EPS)
