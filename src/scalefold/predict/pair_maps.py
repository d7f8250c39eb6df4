"""Predicted distances and aligned errors of pairs of residues, small enough to be kept.

Legend: N residues, M sampled residues. Of long chains every k-th residue is taken.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from scalefold.loss.distogram import FIRST_BREAK_ANGSTROM, LAST_BREAK_ANGSTROM
from scalefold.model.confidence import expected_aligned_error

MOST_SAMPLED: Final = 160


class PairMaps(NamedTuple):
    """Predictions for pairs of sampled residues.

    Attributes
    ----------
    residues : Tensor, shape (M,), int64
        Numbers of the sampled residues, from 0.
    distance : Tensor, shape (M, M)
        Expected distance of the C-beta atoms by the distogram, Å; about 22 stands for all above.
    aligned_error : Tensor or None, shape (M, M)
        Expected error of residue j when aligned on residue i, Å; None without the head.
    """

    residues: Tensor
    distance: Tensor
    aligned_error: Tensor | None


def pair_maps(
    distogram_logits: Tensor, pae_logits: Tensor | None, length: int, max_angstrom: float
) -> PairMaps:
    """Reduce the logits of one chain; only those of sampled residues are read.

    Parameters
    ----------
    distogram_logits, pae_logits : Tensor, shape (padded N, padded N, bins)
    length : int
        N, without padding.
    max_angstrom : float
        ``model.max_pae_angstrom``.
    """
    residues = sampled_residues(length)
    step = max(1, -(-length // MOST_SAMPLED))
    distance = _expected_distance(distogram_logits[:length:step, :length:step].float())
    error = None
    if pae_logits is not None:
        sampled = pae_logits[None, :length:step, :length:step].float()
        error = expected_aligned_error(sampled, max_angstrom)[0].cpu()
    return PairMaps(residues, distance.cpu(), error)


def sampled_residues(length: int) -> Tensor:
    """Numbers of at most `MOST_SAMPLED` residues, evenly spread."""
    return torch.arange(0, length, max(1, -(-length // MOST_SAMPLED)))


def _expected_distance(logits: Tensor) -> Tensor:
    """Mean over the centres of the bins; open bins count as being as wide as the others."""
    bins = logits.shape[-1]
    width = (LAST_BREAK_ANGSTROM - FIRST_BREAK_ANGSTROM) / (bins - 2)
    number = torch.arange(bins, dtype=logits.dtype, device=logits.device)
    centers = FIRST_BREAK_ANGSTROM + width * (number - 0.5)
    return (torch.softmax(logits, dim=-1) * centers).sum(-1)


def true_aligned_error(predicted: Tensor, true: Tensor) -> Tensor:
    """Error of each residue's C-alpha when both structures are aligned on a residue's backbone.

    Parameters
    ----------
    predicted, true : Tensor, shape (M, 4, 3)
        Atoms N, CA, C, O; NaN where there is none.

    Returns
    -------
    Tensor, shape (M, M)
        Row: the residue aligned on. Å; NaN where an atom is missing.
    """
    return (_seen_from(predicted) - _seen_from(true)).norm(dim=-1)


def _seen_from(backbone: Tensor) -> Tensor:
    """C-alpha atoms in the frame of each residue, (M, M, 3)."""
    n, ca, c = backbone[:, 0], backbone[:, 1], backbone[:, 2]
    x = torch.nn.functional.normalize(c - ca, dim=-1)
    y = n - ca
    y = torch.nn.functional.normalize(y - (x * y).sum(-1, keepdim=True) * x, dim=-1)
    axes = torch.stack([x, y, torch.linalg.cross(x, y)], dim=-2)
    return torch.einsum("iab,ijb->ija", axes, ca[None] - ca[:, None])
