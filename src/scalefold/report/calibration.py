"""Predicted against true scores: is the model's confidence right?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from scalefold.evaluate.pae_calibration import BIN_ANGSTROM, NUM_BINS

BIN_WIDTH: Final = 10
"""Width of a bin of pLDDT, which goes from 0 to 100."""


def calibration(chains: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare pLDDT with the true score, residue by residue, for chains of an evaluation.

    Returns
    -------
    dict
        ``residues``, the number of observed residues; ``bins`` of pLDDT, 10 wide, with ``low``,
        ``high``, ``count``, ``mean_plddt`` and ``mean_lddt_ca`` (both 0 to 100, None in an empty
        bin); ``mean_absolute_error``, and the ``correlation`` (Pearson) over all residues, None
        where they are not defined.
    """
    predicted, true = [], []
    for chain in chains:
        residues = chain["per_residue"]
        for plddt, lddt in zip(residues["plddt"], residues["lddt_ca"]):
            if plddt is not None and lddt is not None:
                predicted.append(plddt)
                true.append(100.0 * lddt)
    x, y = np.array(predicted, float), np.array(true, float)
    number = np.minimum(x // BIN_WIDTH, 100 // BIN_WIDTH - 1)
    bins = []
    for index in range(100 // BIN_WIDTH):
        inside = number == index
        bins.append(
            {
                "low": index * BIN_WIDTH,
                "high": (index + 1) * BIN_WIDTH,
                "count": int(inside.sum()),
                "mean_plddt": round(float(x[inside].mean()), 3) if inside.any() else None,
                "mean_lddt_ca": round(float(y[inside].mean()), 3) if inside.any() else None,
            }
        )
    varies = len(x) > 1 and float(x.std()) > 0 and float(y.std()) > 0
    return {
        "residues": len(x),
        "bins": bins,
        "mean_absolute_error": round(float(np.abs(x - y).mean()), 3) if len(x) else None,
        "correlation": round(float(np.corrcoef(x, y)[0, 1]), 4) if varies else None,
    }


def head_calibration(chains: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compare pTM with the TM-score, and predicted with true aligned errors, likewise.

    Returns
    -------
    dict or None
        ``chains``, their number; ``mean_ptm``, ``mean_tm_score``, ``mean_absolute_error``; ``bins``
        of the predicted error: ``low``, ``high``, ``pairs``, ``mean_pae`` and ``mean_error``, Å.
        None without the head.
    """
    known = [c for c in chains if c.get("ptm") is not None and c["tm_score"] is not None]
    if not known:
        return None
    ptm, tm = (np.array([chain[key] for chain in known], float) for key in ("ptm", "tm_score"))
    sums = np.zeros((NUM_BINS, 3))
    for chain in known:
        sums += chain.get("pae_bins") or 0.0
    return {
        "chains": len(known),
        "mean_ptm": round(float(ptm.mean()), 4),
        "mean_tm_score": round(float(tm.mean()), 4),
        "mean_absolute_error": round(float(np.abs(ptm - tm).mean()), 4),
        "bins": [
            {
                "low": BIN_ANGSTROM * number,
                "high": BIN_ANGSTROM * (number + 1),
                "pairs": int(pairs),
                "mean_pae": round(predicted / pairs, 3),
                "mean_error": round(true / pairs, 3),
            }
            for number, (pairs, predicted, true) in enumerate(sums.tolist())
            if pairs
        ],
    }
