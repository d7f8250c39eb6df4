"""Local distance difference test (lDDT; Mariani et al. 2013, doi:10.1093/bioinformatics/btt473).

The share of true interatomic distances below 15 Å, between atoms of different residues, that the
prediction keeps to within 0.5, 1, 2 and 4 Å (mean over the four). No superposition is involved.
A chain's score is the mean over its pairs of atoms, as in AlphaFold, OpenFold and MLPerf; a
residue's score is the mean over the pairs that one of its atoms belongs to.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from scalefold.chem.residues import CA
from scalefold.evaluate.metrics.comparison import Comparison

INCLUSION_RADIUS_ANGSTROM: Final = 15.0
TOLERANCES_ANGSTROM: Final = (0.5, 1.0, 2.0, 4.0)

_ROWS_AT_ONCE: Final = 512  # bounds memory: rows x atoms distances in float64


class Lddt(NamedTuple):
    """lDDT of a chain and of its residues, 0 to 1.

    Attributes
    ----------
    score : float
        NaN where no pair of atoms is within the inclusion radius.
    per_residue : Tensor, shape (N,), float64
        NaN where a residue has no such pair, in particular where it was not observed.
    """

    score: float
    per_residue: Tensor


def lddt_ca(comparison: Comparison) -> Lddt:
    """Score the C-alpha atoms, as AlphaFold does."""
    return _lddt(comparison, atoms=torch.tensor([CA]))


def lddt_all_atom(comparison: Comparison) -> Lddt:
    """Score all heavy atoms, named as they are.

    Atoms of symmetric side chains are compared by name; to ignore their naming, pass the result of
    :func:`~scalefold.evaluate.metrics.naming.with_best_naming`.
    """
    return _lddt(comparison, atoms=torch.arange(comparison.true.shape[1]))


def _lddt(comparison: Comparison, atoms: Tensor) -> Lddt:
    chosen = torch.zeros_like(comparison.true_mask)
    chosen[:, atoms] = True
    kept, counted = pair_sums(comparison, chosen, chosen)
    # 0 / 0 is NaN: no pair, no score.
    return Lddt(score=float(kept.sum() / counted.sum()), per_residue=kept / counted)


def pair_sums(comparison: Comparison, atoms: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
    """For each residue, how much of its atoms' distances is kept, and how many there are.

    Parameters
    ----------
    atoms, partners : Tensor, shape (N, 37), bool
        Pairs of one of ``atoms`` and one of ``partners`` count, where both were observed, in
        different residues, at a true distance below the inclusion radius. An atom that the
        prediction lacks keeps no distance.

    Returns
    -------
    kept, counted : Tensor, shape (N,), float64
        Sum over pairs of the share of tolerances kept (0 to 1 a pair), and number of pairs.
    """
    first, second = (mask & comparison.true_mask for mask in (atoms, partners))
    first_residue, second_residue = (mask.nonzero()[:, 0] for mask in (first, second))
    true, true_partner = comparison.true[first], comparison.true[second]
    predicted, predicted_partner = comparison.predicted[first], comparison.predicted[second]
    lacking, lacking_partner = (~comparison.predicted_mask[mask] for mask in (first, second))

    kept = torch.zeros(len(comparison), dtype=torch.float64)
    counted = torch.zeros_like(kept)
    for rows in torch.arange(len(true)).split(_ROWS_AT_ONCE):
        true_distance = _distances(true[rows], true_partner)
        included = true_distance < INCLUSION_RADIUS_ANGSTROM
        included &= first_residue[rows, None] != second_residue
        # Few pairs of a long chain are that close: the rest works on a list of them.
        i, j = included.nonzero(as_tuple=True)
        error = (predicted[rows][i] - predicted_partner[j]).norm(dim=-1)
        error = (error - true_distance[i, j]).abs_()
        error.masked_fill_(lacking[rows][i] | lacking_partner[j], torch.inf)
        share = torch.zeros_like(error)
        for tolerance in TOLERANCES_ANGSTROM:
            share += (error < tolerance).double() / len(TOLERANCES_ANGSTROM)
        residue = first_residue[rows][i]
        kept.index_add_(0, residue, share)
        counted.index_add_(0, residue, torch.ones_like(share))
    return kept, counted


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # Not by matrix product: it cancels digits where the distance is small beside the coordinates.
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
