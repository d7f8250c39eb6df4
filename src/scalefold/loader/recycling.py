"""How many recycling passes a training step makes before its last one.

A pure function of (seed, step), so that all ranks and every resumed run agree without
communication.
"""

from __future__ import annotations

from typing import Literal

from scalefold.features.random import integers_below, permutation, unit_floats, words


def recycling_count(
    seed: int, step: int, max_recycling: int, draw: Literal["uniform", "stratified"]
) -> int:
    """Return the number of passes without gradient of a step, 0 to ``max_recycling``.

    Parameters
    ----------
    draw : {"uniform", "stratified"}
        Independent draws (AlphaFold2), or every count once in each cycle of ``max_recycling + 1``
        steps, in random order (MLPerf).
    """
    count = max_recycling + 1
    if draw == "uniform":
        return int(integers_below(unit_floats(words(1, "recycling", seed, step)), count)[0])
    cycle, position = divmod(step, count)
    return int(permutation(words(count, "recycling cycle", seed, cycle))[position])
