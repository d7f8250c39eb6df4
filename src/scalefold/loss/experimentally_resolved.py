"""Experimentally resolved loss (Suppl. sec. 1.9.10). Legend: B samples, N residues."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from torch.nn import functional

from scalefold.loss.masked import masked_mean

_EPS: Final = 1e-8


def experimentally_resolved_loss(logits: Tensor, is_resolved: Tensor, exists: Tensor) -> Tensor:
    """Binary cross-entropy of whether an atom is observed, mean over all atoms that should be.

    Parameters
    ----------
    logits : Tensor, shape (B, N, 37)
    is_resolved : Tensor, shape (B, N, 37)
        1 where the atom is observed.
    exists : Tensor, shape (B, N, 37)
        1 where the residue type has the atom.

    Returns
    -------
    Tensor, shape (B,)
    """
    error = functional.binary_cross_entropy_with_logits(
        logits, is_resolved.to(logits.dtype), reduction="none"
    )
    return masked_mean(error, exists, (1, 2), _EPS)
