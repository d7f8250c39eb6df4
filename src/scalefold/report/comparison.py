"""Two evaluations compared chain by chain, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

_RESAMPLES: Final = 10_000
_SEED: Final = 0
_EQUAL: Final = 0.005
"""Smaller differences of lDDT count as none."""
_FEWEST_PAIRS: Final = 10
"""With fewer, the resamples are too alike: the interval is too narrow and finds gains by chance."""


def paired(
    evaluation: Mapping[str, Any], other: Mapping[str, Any], split: str
) -> dict[str, Any] | None:
    """Mean difference of lDDT-C-alpha over the chains that both evaluations have scored.

    Parameters
    ----------
    split : str
        Of ``evaluation``; the other may hold a chain in another split.

    Returns
    -------
    dict or None
        ``chains``, their number; ``mean`` and ``other_mean`` over them; ``difference``,
        ``evaluation`` less ``other``; ``low`` and ``high`` of the 95% interval, by resampling
        chains, None for fewer than ten; ``better``, ``worse``: chains that differ by 0.005 or more.
        None without a common chain.
    """
    theirs = {chain["chain_key"]: chain["lddt_ca"] for chain in other["chains"]}
    pairs = np.array(
        [
            (chain["lddt_ca"], theirs[chain["chain_key"]])
            for chain in evaluation["chains"]
            if chain["split"] == split
            and chain["lddt_ca"] is not None
            and theirs.get(chain["chain_key"]) is not None
        ],
        float,
    )
    if not len(pairs):
        return None
    differences = pairs[:, 0] - pairs[:, 1]
    low, high = _interval(differences)
    return {
        "chains": len(pairs),
        "mean": round(float(pairs[:, 0].mean()), 6),
        "other_mean": round(float(pairs[:, 1].mean()), 6),
        "difference": round(float(differences.mean()), 6),
        "low": low,
        "high": high,
        "better": int((differences >= _EQUAL).sum()),
        "worse": int((differences <= -_EQUAL).sum()),
    }


def _interval(differences: np.ndarray) -> tuple[float | None, float | None]:
    count = len(differences)
    if count < _FEWEST_PAIRS:
        return None, None
    generator = np.random.default_rng(_SEED)
    means = np.concatenate(  # in pieces: a thousand resamples of many chains fit in memory
        [
            differences[generator.integers(0, count, (_RESAMPLES // 10, count))].mean(1)
            for _ in range(10)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return round(float(low), 6), round(float(high), 6)


def comparisons(
    evaluations: Sequence[Mapping[str, Any]],
    others: Sequence[tuple[str, Mapping[str, Any]]],
    splits: Sequence[str],
) -> list[dict[str, Any]]:
    """Compare the last evaluation with the first, with the best, and with others.

    Parameters
    ----------
    evaluations : sequence of mapping
        Of the training, by step.
    others : sequence of (str, mapping)
        Names and evaluations of other weights.

    Returns
    -------
    list of dict
        ``split``, ``with`` (what the last evaluation is compared with), and what `paired` says.
    """
    if not evaluations:
        return []
    first, last = evaluations[0], evaluations[-1]
    rows = []
    for split in splits:
        best = max(evaluations, key=lambda e: _mean_of(e, split))
        named = {f"step {first['step']:,}, the first": first}
        if best is not first:
            named[f"step {best['step']:,}, the best"] = best
        own = [(name, other) for name, other in named.items() if other is not last]
        for name, other in [*own, *others]:
            if found := paired(last, other, split):
                rows.append({"split": split, "with": name, **found})
    return rows


def _mean_of(evaluation: Mapping[str, Any], split: str) -> float:
    value = evaluation["mean"].get(split, {}).get("lddt_ca")
    return -1.0 if value is None else value
