"""How far samples were served from their places, and whether long chains come late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

_EDGES: Final = (128, 256, 384, 512, 1024)
"""Lengths, in residues, at which the classes of the report end."""


class OrderBias:
    """Collects the lateness of served samples by the length of their chains.

    Parameters
    ----------
    index : pyarrow.Table
        ``chain_key`` and ``length`` of all chains.
    """

    def __init__(self, index: pa.Table) -> None:
        self._lengths = dict(zip(index["chain_key"].to_pylist(), index["length"].to_pylist()))
        classes = len(_EDGES) + 1
        self._samples, self._reordered, self._lateness, self._distance = np.zeros(
            (4, classes), np.int64
        )
        self._latest = self._earliest = 0

    def add(self, keys: Sequence[str], lateness: Sequence[int]) -> None:
        """Count served samples: their chains, and by how many steps each was late."""
        for key, steps in zip(keys, lateness, strict=True):
            number = int(np.searchsorted(_EDGES, self._lengths[key], side="right"))
            self._samples[number] += 1
            self._reordered[number] += steps != 0
            self._lateness[number] += steps
            self._distance[number] += abs(steps)
            self._latest = max(self._latest, steps)
            self._earliest = min(self._earliest, steps)

    @property
    def samples(self) -> int:
        """How many were served."""
        return int(self._samples.sum())

    def report(self) -> dict[str, Any]:
        """Share of samples not at their place, mean and largest distances in steps, by length.

        ``mean_lateness`` of a class far above or below that of the others is a bias: such chains
        are seen later or earlier than they were drawn.
        """
        names = [f"< {edge}" for edge in _EDGES] + [f">= {_EDGES[-1]}"]
        total = max(self.samples, 1)
        return {
            "samples": self.samples,
            "reordered_share": float(self._reordered.sum() / total),
            "mean_distance": float(self._distance.sum() / total),
            "latest": self._latest,
            "earliest": self._earliest,
            "by_length": {
                name: {
                    "samples": int(count),
                    "reordered_share": float(self._reordered[i] / count),
                    "mean_lateness": float(self._lateness[i] / count),
                }
                for i, (name, count) in enumerate(zip(names, self._samples))
                if count
            },
        }

    def __str__(self) -> str:
        """The report in a line, for those who read the log."""
        reordered = int(self._reordered.sum())
        said = f"{reordered:,} of {self.samples:,} came at another step than theirs"
        if not reordered:
            return said
        by_length = [
            f"{_residues(number)}: {_shift(self._lateness[number] / count)}"
            for number, count in enumerate(self._samples)
            if count
        ]
        return (
            f"{said}, at most {self._latest} later and {-self._earliest} earlier; on "
            f"average, by residues of the chain: {', '.join(by_length)}"
        )


def _residues(number: int) -> str:
    """The lengths of a class."""
    if number == len(_EDGES):
        return f"{_EDGES[-1]} and more"
    return f"{_EDGES[number - 1] if number else 1} to {_EDGES[number] - 1}"


def _shift(steps: float) -> str:
    """A mean lateness in words."""
    if abs(steps) < 0.05:
        return "0.0"
    return f"{abs(steps):.1f} {'later' if steps > 0 else 'earlier'}"
