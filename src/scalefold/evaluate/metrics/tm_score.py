"""TM-score (Zhang & Skolnick 2004, doi:10.1002/prot.20264) of superposed structures."""

from __future__ import annotations

from torch import Tensor


def tm_d0_angstrom(length: int) -> float:
    """Distance at which a residue counts half; makes the score independent of length.

    Parameters
    ----------
    length : int
        Residues of the reference.

    Returns
    -------
    float
        Å, at least 0.5.
    """
    if length <= 15:
        return 0.5
    return max(0.5, 1.24 * (length - 15) ** (1 / 3) - 1.8)


def tm_scores(squared_distances: Tensor, length: int) -> Tensor:
    """TM-score of each of several superpositions.

    Parameters
    ----------
    squared_distances : Tensor, shape (K, P)
        Å^2, of P corresponding residues in K superpositions.
    length : int
        Residues of the reference, P or more; those without a counterpart score 0.

    Returns
    -------
    Tensor, shape (K,)
    """
    d0 = tm_d0_angstrom(length)
    return (1.0 / (1.0 + squared_distances / d0**2)).sum(-1) / length
