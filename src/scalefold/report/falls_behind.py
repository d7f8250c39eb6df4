"""Where a run falls behind the one beside it, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scalefold.report.smoothing import numbers

_FEWEST_RECORDS: Final = 10
_JUDGED: Final = 4
"""Equal parts of the steps; the last is judged."""
_NOISE: Final = 4.0
"""Standard errors of a difference of means that are more than noise."""
_MARGIN: Final = 0.03
"""Share of the other's value that a difference must exceed."""
_WORSE: Final = {"loss/fape": 1, "lddt_ca": -1}
"""Curves that are judged, and the sign of a difference for the worse."""
_NAMES: Final = {"loss/fape": "FAPE", "lddt_ca": "lDDT-Cα of training crops"}


def falls_behind(
    training: Mapping[str, Sequence[Any]], compared: Mapping[str, Any] | None
) -> Iterator[str]:
    """Say where a run is worse than the one beside it, in FAPE or lDDT-C-alpha of its crops.

    Only the last quarter of the steps that both have made is judged, with 10 records of each or
    more. This run is behind if its mean over them is worse by more than 4 standard errors of the
    difference, as in Welch's test, and by more than 3 % of the other's. Independent noise passes
    the 4 errors in fewer than one of 1,000 runs. A single spike never does, since it raises the
    error too. A run whose running mean has caught up by the last step is not behind. The runs part
    at the step that best tells steps without a difference from steps with the judged one.
    """
    if compared is None:
        return
    said = []
    for row in compared["rows"]:
        key = row["key"]
        parting = _parting(row, training, compared) if key in _WORSE else None
        if parting is not None:
            said.append(
                f"{_NAMES[key]} is {row['here']:.3f} here and {row['there']:.3f} there, "
                f"{'higher' if _WORSE[key] > 0 else 'lower'} since step {parting:,}"
            )
    if said:
        differ = len(compared["settings"] or ())
        yield (
            f"This run falls behind {compared['run']}. After {compared['step']:,} steps, "
            f"{'; '.join(said)}."
        ) + (f" Settings that differ: {differ}, see Training." if differ else "")


def _parting(
    row: Mapping[str, Any], training: Mapping[str, Sequence[Any]], compared: Mapping[str, Any]
) -> int | None:
    """The step from which on this run is the worse one; None if it is not behind."""
    key, end = row["key"], compared["step"]
    steps, ours = _known(key, training, end)
    others_steps, others = _known(key, compared["training"], end)
    start = end * (1 - 1 / _JUDGED)
    here, there = ours[steps > start], others[others_steps > start]
    if min(len(here), len(there)) < _FEWEST_RECORDS:
        return None
    sign = _WORSE[key]
    worse = sign * (here.mean() - there.mean())
    error = math.sqrt(here.var(ddof=1) / len(here) + there.var(ddof=1) / len(there))
    caught_up = sign * (row["here"] - row["there"]) <= 0
    if caught_up or worse <= max(_MARGIN * there.mean(), _NOISE * error):
        return None
    # Least squares: the sum falls while the runs are nearer to equal, and rises once they are not.
    gap = sign * (ours - np.interp(steps, others_steps, others))
    sums = np.cumsum(gap - worse / 2)
    parting = 0 if sums.min() > 0 else int(sums.argmin()) + 1
    return int(steps[min(parting, len(steps) - 1)])


def _known(
    key: str, columns: Mapping[str, Sequence[Any]], end: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps until the end, and the values logged at them."""
    steps = np.array(columns["step"], dtype=np.float64)
    values = np.array(numbers(columns[key]))
    there = np.isfinite(values) & (steps <= end)
    return steps[there], values[there]
