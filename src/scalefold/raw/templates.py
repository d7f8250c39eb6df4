"""Template hits: which structures may be templates of a chain, and which residues correspond.

The rules are AlphaFold2's (Jumper et al. 2021, Suppl. sec. 1.2.3). This file has the rules that
depend on sequences alone; they hold for all chains of a sequence. :mod:`scalefold.shards.reader`
leaves out hits of the chain's own entry, :mod:`scalefold.features.templates` hits that are too new.

Indices count residues from 0: ``q_idx`` in the query chain, ``t_idx`` in the template chain.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from Bio.Align import PairwiseAligner, substitution_matrices
from numpy.typing import NDArray

from scalefold.raw.aligned_hit import AlignedHit
from scalefold.raw.alignment import NO_OTHER_PARENTS
from scalefold.raw.hhr import HhrHit

MAX_SUBSEQUENCE_RATIO: Final = 0.95
MIN_ALIGN_RATIO: Final = 0.1
MIN_TEMPLATE_RESIDUES: Final = 10
MIN_REALIGNED_IDENTITY: Final = 0.9


@dataclass(frozen=True, eq=False)
class Located:
    """Where a hit's residues are in a real chain.

    Parameters
    ----------
    chain_key
        The chain with the coordinates. The hit may name another chain of the entry.
    shift
        Added to the hit's numbers of template residues.
    realigned
        Pairs of residues, as :meth:`pairs` returns them, if one shift does not give all.
    """

    chain_key: str
    shift: int = 0
    realigned: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None

    def pairs(self, hit: AlignedHit) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return ``[M]`` int32 residues of the query, and those of the chain they go with."""
        return self.realigned or (hit.q_idx, hit.t_idx + np.int32(self.shift))


def sequence_reason(
    hit: HhrHit, query_sequence: str, other_parents: Mapping[int, str] = NO_OTHER_PARENTS
) -> str | None:
    """Return why the sequences exclude this hit, or ``None``.

    A hit is excluded if it aligns at most a tenth of the query, if it has fewer than 10 residues,
    or if its residues are an exact part of more than 95 % of the query: then it is the query under
    another name. ``other_parents`` are the query's modified residues, see
    :class:`~scalefold.raw.mmcif.Chain`.
    """
    fragment = hit.template_fragment
    align_ratio = hit.aligned_columns / len(query_sequence)
    if align_ratio <= MIN_ALIGN_RATIO:
        return f"aligns {align_ratio:.3f} of the query, more than {MIN_ALIGN_RATIO} is needed"
    ratio = len(fragment) / len(query_sequence)
    if ratio > MAX_SUBSEQUENCE_RATIO and _is_part(fragment, query_sequence, other_parents):
        return f"is {ratio:.3f} of the query itself, at most {MAX_SUBSEQUENCE_RATIO} is allowed"
    if len(fragment) < MIN_TEMPLATE_RESIDUES:
        return f"has {len(fragment)} residues, {MIN_TEMPLATE_RESIDUES} are needed"
    return None


def _is_part(fragment: str, sequence: str, other_parents: Mapping[int, str]) -> bool:
    return any(
        all(
            letter == sequence[i] or letter in other_parents.get(i, "")
            for i, letter in enumerate(fragment, start)
        )
        for start in range(len(sequence) - len(fragment) + 1)
    )


def best_first(hits: Iterable[HhrHit]) -> list[HhrHit]:
    """Return hits by descending ``sum_probs``, in the file's order among equals."""
    return sorted(hits, key=lambda hit: -hit.sum_probs)


def locate(hit: AlignedHit, sequences: Mapping[str, str]) -> Located | str:
    """Find a hit's residues in the chains of its entry.

    The searched database and the structure may have different versions of the sequence. These are
    tried in order: the exact fragment in the named chain, at the hit's position or elsewhere; the
    exact fragment in another chain; the fragment in any chain, with ``X`` equal to anything; a
    realignment with the named chain, or the only one, with at least 90 % identity over the shorter
    sequence.

    Parameters
    ----------
    sequences
        Chain key -> sequence, of all protein chains of the hit's entry.

    Returns
    -------
    Located or str
        The reason as text if the hit cannot be used.
    """
    fragment = hit.template_fragment
    named_first = sorted(sequences, key=lambda key: key != hit.chain_key)
    for key in named_first:
        offset = _find(fragment, sequences[key], hit.template_start)
        if offset is not None:
            return Located(key, offset - hit.template_start)
    wildcard = "".join("." if s == "X" else f"[{s}X]" for s in fragment)
    for key in named_first:
        if "X" in fragment or "X" in sequences[key]:  # otherwise it is as the exact fragment
            match = re.search(wildcard, sequences[key])
            if match:
                return Located(key, match.start() - hit.template_start)

    if hit.chain_key in sequences:
        key = hit.chain_key
    elif len(sequences) == 1:
        key = next(iter(sequences))
    else:
        known = ", ".join(sequences) or "no protein chain"
        return f"chain {hit.chain_key} is not in its entry, which has {known}"
    pairs = _realign(fragment, sequences[key])
    same = sum(fragment[i] == sequences[key][j] for i, j in pairs.items())
    identity = same / min(len(fragment), len(sequences[key]))
    within = (hit.t_idx - hit.template_start).tolist()
    kept = np.array([i in pairs for i in within], bool)
    if identity < MIN_REALIGNED_IDENTITY or not kept.any():
        return (
            f"is {identity:.2f} identical to chain {key}, {MIN_REALIGNED_IDENTITY} is needed: the "
            "searched database and the structure hold different sequences"
        )
    moved = np.array([pairs[i] for i in within if i in pairs], np.int32)
    return Located(key, realigned=(hit.q_idx[kept], moved))


def _find(fragment: str, sequence: str, expected: int) -> int | None:
    """Return where the fragment starts: at the expected place, else at the first."""
    if sequence.startswith(fragment, expected):
        return expected
    offset = sequence.find(fragment)
    return None if offset < 0 else offset


@functools.cache
def _aligner() -> PairwiseAligner:
    aligner = PairwiseAligner(mode="global")
    aligner.substitution_matrix = substitution_matrices.load("BLOSUM62")
    aligner.open_gap_score = -11.0
    aligner.extend_gap_score = -1.0
    # The fragment is a part of the chain, so gaps at the ends cost nothing.
    aligner.end_gap_score = 0.0
    return aligner


def _realign(fragment: str, sequence: str) -> dict[int, int]:
    """Return fragment index -> sequence index of the best alignment."""
    aligner = _aligner()
    alphabet = str(aligner.substitution_matrix.alphabet)
    first, second = (
        "".join(s if s in alphabet else "X" for s in text) for text in (fragment, sequence)
    )
    blocks = aligner.align(first, second)[0].aligned
    return {
        int(i): int(j)
        for (i0, i1), (j0, j1) in zip(*blocks, strict=True)
        for i, j in zip(range(i0, i1), range(j0, j1), strict=True)
    }
