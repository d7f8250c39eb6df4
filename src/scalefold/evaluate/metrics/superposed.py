"""TM-score and GDT of a prediction: the best over a search of superpositions.

Residues correspond by number, as in the TMscore program, whose search is followed and goes on from
there, so scores are never below the program's. TM-align, which looks for the correspondence too,
gives other (never lower) numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from scalefold.chem.residues import CA
from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.evaluate.metrics.gdt import GDT_CUTOFFS_ANGSTROM, gdt_ts, most_within
from scalefold.evaluate.metrics.search import superposed_distances
from scalefold.evaluate.metrics.tm_score import tm_d0_angstrom, tm_scores


class SuperposedScores(NamedTuple):
    """Scores of the C-alpha atoms, 0 to 1; NaN where none was observed."""

    tm_score: float
    gdt_ts: float


def superposed_scores(comparison: Comparison) -> SuperposedScores:
    """TM-score and GDT-TS, normalised by the number of observed residues.

    Parameters
    ----------
    comparison : Comparison

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
            best = max(best, float(tm_scores(squared, length).max()))
            most = torch.maximum(most, most_within(squared))
    return SuperposedScores(best, gdt_ts(most, length))
