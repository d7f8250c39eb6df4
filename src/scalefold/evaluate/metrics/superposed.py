"""Scores of superposed C-alpha atoms: RMSD, and the best TM-score and GDT of a search.

Residues correspond by number, as in the TMscore program, whose search is followed and goes on from
there, so scores are never below the program's. TM-align, which looks for the correspondence too,
gives other (never lower) numbers.

TM-score: Zhang & Skolnick 2004, doi:10.1002/prot.20264. Global distance test: Zemla 2003,
doi:10.1093/nar/gkg571. It is the largest share of residues that some superposition brings within a
cutoff; GDT-TS is the mean over the cutoffs 1, 2, 4 and 8 Å.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from scalefold.chem.residues import CA
from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.evaluate.metrics.search import superposed_distances
from scalefold.geometry.superposition import superposed_rmsd

GDT_CUTOFFS_ANGSTROM: Final = (1.0, 2.0, 4.0, 8.0)


class SuperposedScores(NamedTuple):
    """Scores of the C-alpha atoms, 0 to 1; NaN where none was observed."""

    tm_score: float
    gdt_ts: float


def superposed_scores(comparison: Comparison) -> SuperposedScores:
    """TM-score and GDT-TS, normalised by the number of observed residues.

    Returns
    -------
    SuperposedScores
        Each is the best over all superpositions that the search visits; they may be different
        ones, for GDT also from cutoff to cutoff.
    """
    length = int(comparison.true_mask[:, CA].sum())
    if length == 0:
        return SuperposedScores(*[float("nan")] * 2)
    mask = comparison.true_mask[:, CA] & comparison.predicted_mask[:, CA]
    most = torch.zeros(len(GDT_CUTOFFS_ANGSTROM), dtype=torch.int64)
    best = 0.0
    if mask.any():
        d0 = tm_d0_angstrom(length)
        radius = min(8.0, max(4.5, d0))
        for squared in superposed_distances(
            comparison.predicted[mask, CA],
            comparison.true[mask, CA],
            radius,
            (d0, *GDT_CUTOFFS_ANGSTROM),
        ):
            scores = (1.0 / (1.0 + squared / d0**2)).sum(-1) / length
            best = max(best, float(scores.max()))
            most = torch.maximum(most, most_within(squared))
    return SuperposedScores(best, float(most.double().mean()) / length)


def tm_d0_angstrom(length: int) -> float:
    """Distance at which a residue counts half; makes the TM-score independent of length.

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


def most_within(squared_distances: Tensor) -> Tensor:
    """For each cutoff of the GDT, the most residues within it in any of several superpositions.

    Parameters
    ----------
    squared_distances : Tensor, shape (K, P)
        Å^2, of P corresponding residues in K superpositions.

    Returns
    -------
    Tensor, shape (4,), int64
    """
    counts = [(squared_distances <= cutoff**2).sum(-1).max() for cutoff in GDT_CUTOFFS_ANGSTROM]
    return torch.stack(counts)


def rmsd_ca(comparison: Comparison) -> float:
    """RMSD of the C-alpha atoms that are both observed and predicted, in Å.

    All of them are superposed at once (Kabsch), so a single misplaced tail moves it far: read it
    beside the TM-score. NaN where there is no such atom.
    """
    mask = comparison.predicted_mask[:, CA] & comparison.true_mask[:, CA]
    if not mask.any():
        return float("nan")
    return float(superposed_rmsd(comparison.predicted[:, CA], comparison.true[:, CA], mask))
