"""Predicted against true aligned errors of a chain, in bins that a report adds up."""

from __future__ import annotations

from typing import Final

import torch

from scalefold.evaluate.shown_structures import Backbones
from scalefold.predict.pair_maps import true_aligned_error

BIN_ANGSTROM: Final = 4
NUM_BINS: Final = 8
"""Predicted errors go to about 32 Å."""


def pae_bins(structure: Backbones) -> list[list[float]] | None:
    """Pairs of sampled residues by their predicted error.

    Returns
    -------
    list of [count, sum of predicted errors, sum of true errors], or None
        For each bin; true errors count up to 32 Å, beyond which no prediction goes. None without
        the head.
    """
    maps = structure.maps
    if maps is None or maps.aligned_error is None:
        return None
    sampled = (positions[maps.residues].double() for positions in structure[1:3])
    true = true_aligned_error(*sampled).clamp(max=BIN_ANGSTROM * NUM_BINS)
    known = torch.isfinite(true)
    predicted, true = maps.aligned_error.double()[known], true[known]
    number = (predicted / BIN_ANGSTROM).long().clamp(0, NUM_BINS - 1)
    rows = torch.zeros(NUM_BINS, 3, dtype=torch.float64)
    rows.index_add_(0, number, torch.stack([torch.ones_like(true), predicted, true], 1))
    return [[int(count), round(one, 3), round(two, 3)] for count, one, two in rows.tolist()]
