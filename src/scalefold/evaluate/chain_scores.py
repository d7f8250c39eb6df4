"""All metrics of one predicted chain."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from scalefold.chem.residues import CA
from scalefold.evaluate.metrics import (
    Comparison,
    lddt_all_atom,
    lddt_ca,
    rmsd_ca,
    stereochemistry,
    superposed_scores,
    with_best_naming,
)
from scalefold.model.confidence import plddt
from scalefold.predict.predictor import Prediction
from scalefold.shards.records import ChainRecord

METRICS: Final = (
    "lddt_ca",
    "lddt_all_atom",
    "gdt_ts",
    "tm_score",
    "rmsd_ca_angstrom",
    "mean_plddt",
)
"""Scores of a chain, in the order of tables; lDDT, GDT and TM-score 0 to 1, pLDDT 0 to 100."""

_DIGITS: Final = 6
_RESIDUE_DIGITS: Final = 4


def compare(prediction: Prediction, chain: ChainRecord) -> Comparison:
    """Put a prediction and the true structure side by side.

    Raises
    ------
    InputError
        If a predicted coordinate is not finite.
    """
    return Comparison(
        predicted=prediction.positions,
        predicted_mask=prediction.position_mask,
        true=torch.from_numpy(chain.positions),
        true_mask=torch.from_numpy(chain.atom_mask),
        aatype=torch.from_numpy(chain.aatype),
    )


def score_chain(prediction: Prediction, comparison: Comparison) -> dict[str, Any]:
    """Compare a prediction with the true structure.

    Parameters
    ----------
    prediction : Prediction
        Of one chain, whole and without padding.

    Returns
    -------
    dict
        ``METRICS``; ``observed``, the number of residues with an observed C-alpha; ``ptm``, the
        predicted TM-score, where the model has the head; the counts of `stereochemistry`; and
        ``per_residue`` with the lists ``lddt_ca`` and ``plddt``. Scores of a chain without observed
        atoms and the lDDT of an unobserved residue are None. ``mean_plddt`` is over all residues,
        observed or not.
    """
    confidence = plddt(prediction.plddt_logits.double())
    ca, superposed = lddt_ca(comparison), superposed_scores(comparison)
    scores = {
        "lddt_ca": ca.score,
        "lddt_all_atom": lddt_all_atom(with_best_naming(comparison)).score,
        "gdt_ts": superposed.gdt_ts,
        "tm_score": superposed.tm_score,
        "rmsd_ca_angstrom": rmsd_ca(comparison),
        "mean_plddt": float(confidence.mean()),
    }
    assert tuple(scores) == METRICS
    return {
        "observed": int(comparison.true_mask[:, CA].sum()),
        **{name: _number(value, _DIGITS) for name, value in scores.items()},
        **({} if prediction.ptm is None else {"ptm": _number(prediction.ptm, _DIGITS)}),
        **stereochemistry(comparison)._asdict(),
        "per_residue": {"lddt_ca": _list(ca.per_residue), "plddt": _list(confidence)},
    }


def _number(value: float, digits: int) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _list(values: Tensor) -> list[float | None]:
    return [_number(value, _RESIDUE_DIGITS) for value in values.tolist()]
