"""A multiple sequence alignment as arrays; merging several.

Shapes: ``N`` rows, ``L`` columns (the query's residues), ``D`` places with a deletion count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import GAP
from scalefold.errors import InputError

ROW_SOURCES: Final[tuple[str, ...]] = (
    "other",
    "uniref90_hits",
    "bfd_uniclust_hits",
    "mgnify_hits",
    "uniref100_hits",
    "colabfold_hits",
    "swissprot_hits",
)
"""Sources of rows: stems of a3m files. A row's code is the index here."""
_KNOWN_SOURCES: Final = ROW_SOURCES[1:]

NO_OTHER_PARENTS: Final[Mapping[int, str]] = MappingProxyType({})
"""For a chain whose residues have the same letters in all tables."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Aligned sequences, the query first, with the residues deleted relative to it.

    Parameters
    ----------
    msa
        ``[N, L]`` uint8: AlphaFold2 residue order, 20 unknown, 21 gap. Row 0 is the query.
    del_ptr, del_col, del_val
        Deletion counts, sparse: row ``i`` has ``del_val[k]`` residues between columns
        ``del_col[k] - 1`` and ``del_col[k]`` for ``k`` in ``del_ptr[i]:del_ptr[i + 1]``.
        ``[N + 1]`` uint32, ``[D]`` uint16, ``[D]`` uint16. Residues after the last column are
        not counted (as in AlphaFold2).
    row_source
        ``[N]`` uint8, index into :data:`ROW_SOURCES`.
    part
        ``[N]`` int64, ascending: which of several merged files a row is from.
    num_other_parents
        Modified residues whose letters in the file's query and the chain are of different tables.
    cut
        Number of rows that were left out, by their source's name.
    """

    msa: NDArray[np.uint8]
    del_ptr: NDArray[np.uint32]
    del_col: NDArray[np.uint16]
    del_val: NDArray[np.uint16]
    row_source: NDArray[np.uint8]
    part: NDArray[np.int64]
    num_other_parents: int = 0
    cut: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.msa)

    def select(self, rows: NDArray[np.intp]) -> Alignment:
        """Return the alignment of the given rows, in the given order."""
        counts = np.diff(self.del_ptr)[rows].astype(np.int64)
        ptr = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(ptr[-1]) - np.repeat(ptr[:-1], counts)
        places = np.repeat(self.del_ptr[:-1][rows].astype(np.int64), counts) + within
        return Alignment(
            msa=self.msa[rows],
            del_ptr=ptr.astype(np.uint32),
            del_col=self.del_col[places],
            del_val=self.del_val[places],
            row_source=self.row_source[rows],
            part=self.part[rows],
            num_other_parents=self.num_other_parents,
            cut=self.cut,
        )

    def first(self, number: int | None, source: str) -> Alignment:
        """Return the first rows; ``source`` is counted as cut. ``None`` for all."""
        if number is None or len(self) <= number:
            return self
        cut = {**self.cut, source: len(self) - number}
        return replace(self.select(np.arange(number)), cut=cut)

    def share(self, number: int, names: Sequence[str]) -> Alignment:
        """Return at most ``number`` rows: the query, and the same share of each part, from its top.

        ``names`` are the parts' names.
        """
        if len(self) <= number:
            return self
        counts = np.bincount(self.part[1:], minlength=len(names))
        exact = counts * ((number - 1) / (len(self) - 1))
        kept = np.floor(exact).astype(np.int64)
        missing = number - 1 - int(kept.sum())
        kept[np.argsort(kept - exact, kind="stable")[:missing]] += 1
        starts = 1 + np.cumsum(counts) - counts
        is_kept = np.arange(1, len(self)) - starts[self.part[1:]] < kept[self.part[1:]]
        cut = Counter(self.cut)
        cut.update({name: int(n) for name, n in zip(names, counts - kept, strict=True) if n})
        return replace(self.select(np.flatnonzero(np.r_[True, is_kept])), cut=dict(cut))


def source_order(name: str) -> tuple[int, str]:
    """Return a sort key for names of alignments: those of `ROW_SOURCES` first, in its order."""
    known = name in _KNOWN_SOURCES
    return (_KNOWN_SOURCES.index(name) if known else len(_KNOWN_SOURCES), name)


def merge(alignments: Sequence[Alignment]) -> Alignment:
    """Stack alignments of one query and drop duplicates.

    The first of equal rows is kept, so the query stays row 0. Deletions do not count. AlphaFold2
    compares letters, this function codes: rows that differ only in B/D, U/C, Z/E or J/O/X are
    equal.

    Raises
    ------
    InputError
        No alignment, or different widths.
    """
    if not alignments:
        raise InputError("no alignment to merge; give at least one.")
    widths = {alignment.msa.shape[1] for alignment in alignments}
    if len(widths) > 1:
        raise InputError(f"alignments of {sorted(widths)} columns do not belong to one query.")
    counts = [np.diff(alignment.del_ptr) for alignment in alignments]
    stacked = Alignment(
        msa=np.concatenate([a.msa for a in alignments]),
        del_ptr=np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.uint32),
        del_col=np.concatenate([a.del_col for a in alignments]),
        del_val=np.concatenate([a.del_val for a in alignments]),
        row_source=np.concatenate([a.row_source for a in alignments]),
        part=np.concatenate([a.part for a in alignments]),
        num_other_parents=max(a.num_other_parents for a in alignments),
        cut=dict(sum((Counter(a.cut) for a in alignments), Counter())),
    )
    as_items = np.ascontiguousarray(stacked.msa).view(np.dtype((np.void, stacked.msa.shape[1])))
    _, first = np.unique(as_items[:, 0], return_index=True)
    return stacked if len(first) == len(stacked) else stacked.select(np.sort(first))


def profile(msa: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the frequency of each symbol in each column.

    Parameters
    ----------
    msa
        ``[N, L]`` uint8, codes 0 to 21.

    Returns
    -------
    ndarray
        ``[L, 22]`` float32, rows sum to 1: the full-MSA profile from which masking draws
        (Suppl. sec. 1.2.7).
    """
    counts = np.stack([(msa == code).sum(axis=0) for code in range(GAP + 1)], axis=1)
    return (counts / len(msa)).astype(np.float32)
