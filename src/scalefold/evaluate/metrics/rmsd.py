"""Root mean square distance after the best superposition."""

from __future__ import annotations

from scalefold.chem.residues import CA
from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.geometry.superposition import superposed_rmsd


def rmsd_ca(comparison: Comparison) -> float:
    """RMSD of the C-alpha atoms that are both observed and predicted, in Å.

    All of them are superposed at once (Kabsch), so a single misplaced tail moves it far: read it
    beside the TM-score. NaN where there is no such atom.
    """
    mask = comparison.predicted_mask[:, CA] & comparison.true_mask[:, CA]
    if not mask.any():
        return float("nan")
    return float(superposed_rmsd(comparison.predicted[:, CA], comparison.true[:, CA], mask))
