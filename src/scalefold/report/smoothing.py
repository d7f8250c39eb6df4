"""Running means of noisy curves, and thinning of long ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

POINTS_SHOWN: Final = 1200


def numbers(values: Iterable[float | None]) -> list[float]:
    """A logged column with NaN where there is no number."""
    return [math.nan if value is None else float(value) for value in values]


def smoothing_window(length: int) -> int:
    """Records that a running mean looks back on: a twentieth of the curve, at least one."""
    return max(1, round(length / 20))


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Exponential running mean, from both sides so that it does not lag behind; passes over NaN.

    Parameters
    ----------
    window : int
        Records after which a value's weight has fallen to 1/e.

    Returns
    -------
    list of float
        As many; NaN only where there is no number at all.
    """
    forward = _sums(values, window)
    backward = _sums(values[::-1], window)[::-1]
    means = []
    for (total, weight), (later, later_weight) in zip(forward, backward):
        both = weight + later_weight
        means.append((total + later) / both if both else math.nan)
    return means


def _sums(values: Sequence[float], window: int) -> list[tuple[float, float]]:
    """Weighted sum of the values so far, and sum of the weights."""
    decay = math.exp(-1.0 / window)
    total = weight = 0.0
    sums = []
    for value in values:
        total, weight = decay * total, decay * weight
        if not math.isnan(value):
            total, weight = total + value, weight + 1.0
        sums.append((total, weight))
    return sums


def thinned(length: int) -> range:
    """Indices of at most about ``POINTS_SHOWN`` points, evenly spread."""
    return range(0, length, max(1, length // POINTS_SHOWN))
