"""Scores of chains by length, by depth of the alignment and by date of release."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

_LENGTHS: Final = (0, 100, 200, 400, 800)
_DEPTHS: Final = (0, 30, 100, 1000, 10_000)
_YEARS: Final = (0, 1999, 2009, 2019)
"""A group holds what is above one value and at most the next."""


def by_group(chains: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean scores of groups of chains.

    Parameters
    ----------
    chains : iterable of mapping
        ``chains`` of an evaluation. What older versions did not note makes no groups.

    Returns
    -------
    list of dict
        ``split``, ``by``, ``group``, ``chains``, and the means ``lddt_ca``, ``lddt_all_atom``,
        ``tm_score`` and ``mean_plddt`` (None where no chain has one). Empty groups are left out.
    """
    chains = list(chains)
    return [
        {
            "split": split,
            "by": by,
            "group": name,
            "chains": len(members),
            **{
                metric: _mean(chain.get(metric) for chain in members)
                for metric in ("lddt_ca", "lddt_all_atom", "tm_score", "mean_plddt")
            },
        }
        for by, value, edges, unit in (
            ("length", lambda chain: chain["length"], _LENGTHS, " residues"),
            ("depth", lambda chain: chain.get("alignment_rows"), _DEPTHS, " rows"),
            ("release", _year, _YEARS, ""),
        )
        for split in dict.fromkeys(chain["split"] for chain in chains)
        for name, members in _grouped(chains, split, value, edges, unit)
    ]


def _grouped(
    chains: Sequence[Mapping[str, Any]],
    split: str,
    value: Callable[[Mapping[str, Any]], int | None],
    edges: Sequence[int],
    unit: str,
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for low, high in zip(edges, [*edges[1:], None]):
        members = [
            chain
            for chain in chains
            if chain["split"] == split
            and (number := value(chain)) is not None
            and number > low
            and (high is None or number <= high)
        ]
        if high is None:
            name = f"from {low + 1} on" if not unit else f"above {low:,}{unit}"
        elif low == 0:
            name = f"up to {high}{unit}"
        else:
            name = f"{low + 1} to {high}" if not unit else f"{low + 1:,} to {high:,}{unit}"
        if members:
            yield name, members


def _year(chain: Mapping[str, Any]) -> int | None:
    date = chain.get("release_date")
    return None if date is None else int(date[:4])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 6) if known else None
