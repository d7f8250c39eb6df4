"""The residues that a training sample is cropped to."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from scalefold.features.random import integers_below


class Crop(NamedTuple):
    """Residues ``start`` to ``start + size`` of a chain."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        """One past the last residue."""
        return self.start + self.size


def random_crop(
    length: int,
    crop_size: int,
    *,
    draw: Literal["alphafold", "uniform"],
    clamped: bool,
    shift: float,
    start: float,
) -> Crop:
    """Crop a chain at random (Suppl. sec. 1.2.8).

    Parameters
    ----------
    draw : {"alphafold", "uniform"}
        AlphaFold2 prefers crops near the N-terminus in samples whose FAPE is not clamped.
    shift, start : float
        Uniform in [0, 1).
    """
    size = min(length, crop_size)
    last_start = length - size
    if draw == "alphafold" and not clamped:
        last_start -= _integer(shift, last_start + 1)
    return Crop(_integer(start, last_start + 1), size)


def _integer(unit: float, bound: int) -> int:
    return int(integers_below(np.asarray([unit]), bound)[0])
