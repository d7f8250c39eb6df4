"""Lengths of made-up chains."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Lengths:
    """A clipped log-normal distribution, in residues; ``spread`` is that of the logarithm."""

    median: int
    spread: float
    shortest: int
    longest: int

    def __str__(self) -> str:
        return (
            f"log-normal, median {self.median}, standard deviation of the logarithm {self.spread}, "
            f"clipped to {self.shortest} to {self.longest}"
        )

    def quantiles(self, number: int) -> list[int]:
        """Return ``number`` lengths, ascending."""
        normal = statistics.NormalDist(math.log(self.median), self.spread)
        places = ((place + 0.5) / number for place in range(number))
        lengths = (round(math.exp(normal.inv_cdf(place))) for place in places)
        return [min(max(length, self.shortest), self.longest) for length in lengths]


CAMEO_LIKE: Final = Lengths(220, 0.5, 50, 700)
PDB_LIKE: Final = Lengths(240, 0.65, 20, 2_500)
