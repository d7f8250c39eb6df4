"""The predictions of one target, best first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scalefold.model.confidence import plddt
from scalefold.predict.members import Member
from scalefold.predict.predictor import Prediction

Measure = Literal["ptm", "mean_plddt"]


@dataclass(frozen=True)
class Ranked:
    """One prediction of a target.

    Attributes
    ----------
    rank : int
        1 is the best.
    plddt : Tensor, shape (N,), float64
        0 to 100.
    """

    rank: int
    member: Member
    prediction: Prediction
    plddt: Tensor

    @property
    def mean_plddt(self) -> float:
        """Over all residues, 0 to 100."""
        return float(self.plddt.mean())

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return f"rank_{self.rank}_{self.member.label}"


def rank(predictions: Iterable[tuple[Member, Prediction]]) -> tuple[Measure, list[Ranked]]:
    """Rank by pTM where all predictions have one, else by mean pLDDT; ties stay in order."""
    found = [(m, p, plddt(p.plddt_logits.to(torch.float64))) for m, p in predictions]
    with_ptm = all(prediction.ptm is not None for _, prediction, _ in found)
    measure: Measure = "ptm" if with_ptm else "mean_plddt"

    def score(entry: tuple[Member, Prediction, Tensor]) -> float:
        _, prediction, confidence = entry
        ptm = prediction.ptm if with_ptm else None
        return float(confidence.mean()) if ptm is None else ptm

    best_first = sorted(found, key=score, reverse=True)
    return measure, [Ranked(place, *entry) for place, entry in enumerate(best_first, 1)]
