"""Predicted aligned error loss (Suppl. sec. 1.9.7). Legend: B samples, N residues, C bins."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from scalefold.geometry.rigid import Rigid
from scalefold.loss.cross_entropy import bin_squared_distance, softmax_cross_entropy
from scalefold.loss.masked import masked_mean

LAST_BREAK_ANGSTROM: Final = 31.0
_EPS: Final = 1e-8


def pae_loss(logits: Tensor, predicted: Rigid, true: Rigid, mask: Tensor) -> Tensor:
    """Cross-entropy of the binned error of each C-alpha, seen from each residue's backbone frame.

    The structure gets no gradient: the head learns to judge it.

    Parameters
    ----------
    logits : Tensor, shape (B, N, N, C)
        First N: the frame that is aligned, second N: the residue whose error is meant.
    predicted, true : Rigid, batch shape (B, N)
        Final and true backbone frames.
    mask : Tensor, shape (B, N)
        1 where the true frame is known.

    Returns
    -------
    Tensor, shape (B,)
    """
    with torch.no_grad():
        local, true_local = (
            frame.unsqueeze(-1).invert_apply(frame.translation[:, None])
            for frame in (predicted, true)
        )
        squared_error = (local - true_local).square().sum(-1)
        true_bin = bin_squared_distance(squared_error, 0.0, LAST_BREAK_ANGSTROM, logits.shape[-1])
    pair_mask = mask[:, :, None] * mask[:, None, :]
    return masked_mean(softmax_cross_entropy(logits, true_bin), pair_mask, (1, 2), _EPS)
