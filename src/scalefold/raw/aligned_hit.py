"""A template hit as two aligned sequences, from which its template can be located."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalefold.raw.chain_key import entry_of


@dataclass(frozen=True, eq=False, kw_only=True)
class AlignedHit:
    """The fields of a hit that locate its template.

    Parameters
    ----------
    chain_key
        Entry in lower case, underscore, author chain, from the title's first word. It has no entry
        if that word is not such a name; then no chain has this key.
    probability
        Probability of a true relation, percent.
    sum_probs
        Sum of the posterior probabilities of the aligned pairs.
    query_start, template_start
        First aligned residue of each side, from 0.
    query_aligned, template_aligned
        The two aligned sequences with ``-`` for gaps, of equal length.
    """

    chain_key: str
    probability: float
    sum_probs: float
    query_start: int
    template_start: int
    query_aligned: str
    template_aligned: str

    @property
    def entry_id(self) -> str:
        """Lower-case entry id."""
        return entry_of(self.chain_key)

    @property
    def template_fragment(self) -> str:
        """The aligned stretch of the template, without gaps."""
        return self.template_aligned.replace("-", "")

    @property
    def q_idx(self) -> NDArray[np.int32]:
        """``[M]`` residues of the query, from 0, that are aligned with a residue."""
        return self._pairs[0]

    @property
    def t_idx(self) -> NDArray[np.int32]:
        """``[M]`` residues of the template, from 0, that they are aligned with."""
        return self._pairs[1]

    @functools.cached_property
    def _pairs(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        query, template = present(self.query_aligned), present(self.template_aligned)
        both = query & template
        q_idx = self.query_start + np.cumsum(query, dtype=np.int32) - 1
        t_idx = self.template_start + np.cumsum(template, dtype=np.int32) - 1
        return q_idx[both].astype(np.int32), t_idx[both].astype(np.int32)


def present(letters: str) -> NDArray[np.bool_]:
    """Return which columns of an aligned sequence have a residue."""
    return np.frombuffer(letters.encode(), np.uint8) != ord("-")
