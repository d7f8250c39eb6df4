"""Confidence measures from the heads' logits (Suppl. sec. 1.9.6, 1.9.7).

Legend: B samples, N residues.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIN_RESIDUES_OF_D0 = 19


def plddt(logits: Tensor) -> Tensor:
    """Predicted lDDT-Cα, 0 to 100: the mean over bins of equal width; (..., bins) -> (...)."""
    num_bins = logits.shape[-1]
    centers = (torch.arange(num_bins, dtype=logits.dtype, device=logits.device) + 0.5) / num_bins
    return 100.0 * (torch.softmax(logits, dim=-1) * centers).sum(-1)


def aligned_error_bin_centers(num_bins: int, max_angstrom: float, like: Tensor) -> Tensor:
    """Centres of the aligned error's bins, Å.

    ``num_bins - 1`` edges lie equally spaced from 0 to ``max_angstrom``; the last bin, open, is
    given a centre as if it were as wide as the others.
    """
    edges = torch.linspace(0, max_angstrom, num_bins - 1, dtype=like.dtype, device=like.device)
    step = edges[1] - edges[0]
    return torch.cat([edges, edges[-1:] + step]) + step / 2


def expected_aligned_error(logits: Tensor, max_angstrom: float) -> Tensor:
    """Expected error of residue j when aligned on residue i, Å.

    Parameters
    ----------
    logits : Tensor, shape (B, N, N, bins)
    max_angstrom : float
        Last edge (``model.max_pae_angstrom``).

    Returns
    -------
    Tensor, shape (B, N, N)
    """
    centers = aligned_error_bin_centers(logits.shape[-1], max_angstrom, logits)
    return (torch.softmax(logits, dim=-1) * centers).sum(-1)


def predicted_tm_score(logits: Tensor, mask: Tensor, max_angstrom: float) -> Tensor:
    """Predicted TM-score (eq. 38-40).

    Parameters
    ----------
    logits : Tensor, shape (B, N, N, bins)
    mask : Tensor, shape (B, N)
        1 for real residues; padded ones count neither as residues nor as alignments.
    max_angstrom : float
        Last edge (``model.max_pae_angstrom``).

    Returns
    -------
    Tensor, shape (B,)
    """
    centers = aligned_error_bin_centers(logits.shape[-1], max_angstrom, logits)
    mask = mask.to(logits.dtype)
    num_residues = mask.sum(-1)
    d0 = 1.24 * (num_residues.clamp(min=MIN_RESIDUES_OF_D0) - 15) ** (1 / 3) - 1.8
    score = 1 / (1 + (centers / d0[:, None]) ** 2)
    expected = torch.einsum("bijk,bk->bij", torch.softmax(logits, dim=-1), score)
    of_alignment = (expected * mask[:, None]).sum(-1) / num_residues.clamp(min=1)[:, None]
    return (of_alignment * mask).amax(-1)
