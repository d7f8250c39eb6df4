"""Read multiple sequence alignments (a3m) into arrays.

This is the only place that knows letters: everything behind it sees AlphaFold2's residue numbers.
Rare letters become what AlphaFold2 makes of them: B -> D, U -> C, Z -> E, J and O -> X.

Shapes: ``N`` rows, ``L`` columns (the query's residues), ``D`` places with a deletion count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import GAP, MSA_SYMBOLS, UNKNOWN
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
"""Where a row comes from, by its code: the stem of the a3m file."""
_KNOWN_SOURCES: Final = ROW_SOURCES[1:]

NO_OTHER_PARENTS: Final[Mapping[int, str]] = MappingProxyType({})
"""The mapping for a chain on whose residues all tables agree."""

Limits = Callable[[str], int | None]
"""Rows to take of an alignment by its name, ``None`` for all."""

_INVALID: Final = 255
_MAX_UINT16: Final = 65_535
# Rows that HH-suite adds to an a3m: secondary structure and accessibility, not sequences.
_ANNOTATIONS: Final = frozenset({b"ss_pred", b"ss_conf", b"ss_dssp", b"sa_pred", b"sa_dssp"})


def _code_table() -> NDArray[np.uint8]:
    table = np.full(256, _INVALID, np.uint8)
    for code, symbol in enumerate(MSA_SYMBOLS):
        table[ord(symbol)] = code
    for rare, common in (("B", "D"), ("U", "C"), ("Z", "E"), ("J", "X"), ("O", "X")):
        table[ord(rare)] = table[ord(common)]
    return table


_CODES: Final = _code_table()


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
        ``[N + 1]`` uint32, ``[D]`` uint16, ``[D]`` uint16. Residues behind the last column are
        not counted (as in AlphaFold2).
    row_source
        ``[N]`` uint8, index into :data:`ROW_SOURCES`.
    part
        ``[N]`` int64, ascending: which of several merged files a row is from.
    num_other_parents
        Modified residues for which the file's query had the letter of another table than the chain.
    cut
        Rows that were left out, by the name of their source.
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
        """Return at most ``number`` rows: the query, and of each part the same share, its first.

        ``names`` are those of the parts.
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
    """Return what names of alignments are sorted by: known ones as `ROW_SOURCES`, then others."""
    known = name in _KNOWN_SOURCES
    return (_KNOWN_SOURCES.index(name) if known else len(_KNOWN_SOURCES), name)


def encode_sequence(sequence: str) -> NDArray[np.uint8]:
    """Return the alignment codes ``[L]`` of an upper-case sequence.

    Raises
    ------
    InputError
        A character is not a residue letter.
    """
    codes = _CODES[np.frombuffer(sequence.encode("latin-1", "replace"), np.uint8)]
    if (codes >= GAP).any():
        bad = sorted({s for s, code in zip(sequence, codes, strict=True) if code >= GAP})
        raise InputError(f"sequence holds {bad}, expected upper-case residue letters only.")
    return codes


def read_a3m(
    path: Path, sequence: str, other_parents: Mapping[int, str] = NO_OTHER_PARENTS
) -> Alignment:
    """Read one a3m file, see :func:`parse_a3m`. The row source is taken from the file's name."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. Fetch it, or correct the path.") from error
    code = ROW_SOURCES.index(path.stem) if path.stem in ROW_SOURCES else 0
    return parse_a3m(content, sequence, str(path), code, other_parents)


def parse_a3m(
    content: bytes,
    sequence: str,
    source: str,
    row_source: int = 0,
    other_parents: Mapping[int, str] = NO_OTHER_PARENTS,
) -> Alignment:
    """Parse an a3m alignment whose first row is the chain ``sequence``.

    The query row must agree with ``sequence`` in every column; ``X`` on either side agrees with
    anything (one tool writes a modified residue as its parent, another as ``X``), and a modified
    residue with any of its parents. Row 0 of the result is ``sequence`` itself. Rows keep the
    file's order, duplicates included; HH-suite's annotation rows (``ss_pred`` and the like) are
    left out.

    Parameters
    ----------
    content
        The file's bytes.
    sequence
        ``L`` residue letters of the chain.
    source
        Names the file in error messages.
    row_source
        Code for :attr:`Alignment.row_source`.
    other_parents
        Of the chain, see :class:`~scalefold.raw.mmcif.Chain`.

    Raises
    ------
    InputError
        No row, text before the first header, a row of another width, an invalid symbol, or a
        query that is not the chain's sequence.
    """
    names, rows = _split_records(content, source)
    if not rows:
        raise InputError(
            f"{source}: alignment is empty, expected at least the query ({len(sequence)} residues)."
            " Search again, or remove the file."
        )
    width = len(sequence)
    if width > _MAX_UINT16:
        raise InputError(f"{source}: {width} columns; at most {_MAX_UINT16} can be stored.")

    symbols = np.frombuffer(b"".join(rows), np.uint8)
    row_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    is_insertion = (symbols >= ord("a")) & (symbols <= ord("z"))
    is_match = ~is_insertion
    _check_widths(np.bincount(row_of[is_match], minlength=len(rows)), width, names, source)
    msa = _encode_rows(symbols[is_match], width, names, source)

    # A lower-case letter counts for the next aligned column of its row.
    column_of = np.cumsum(is_match)[is_insertion] - row_of[is_insertion] * width
    counted = column_of < width
    places = row_of[is_insertion][counted] * width + column_of[counted]
    places, counts = np.unique(places, return_counts=True)
    deletion_rows, deletion_columns = np.divmod(places, max(width, 1))

    if is_insertion[row_of == 0].any():
        raise InputError(
            f"{source}: the first row ({names[0]}) has insertions; the query must be its first row "
            "and have none. Search again with the chain's sequence as query."
        )
    msa[0], num_other_parents = _checked_query(msa[0], sequence, other_parents, source)
    return Alignment(
        msa=msa,
        del_ptr=np.searchsorted(deletion_rows, np.arange(len(rows) + 1)).astype(np.uint32),
        del_col=deletion_columns.astype(np.uint16),
        del_val=np.minimum(counts, _MAX_UINT16).astype(np.uint16),
        row_source=np.full(len(rows), row_source, np.uint8),
        part=np.zeros(len(rows), np.int64),
        num_other_parents=num_other_parents,
    )


def _check_widths(
    widths: NDArray[np.intp], expected: int, names: Sequence[str], source: str
) -> None:
    wrong = np.flatnonzero(widths != expected)
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{source}: row {row + 1} ({names[row]}) has {widths[row]} aligned columns, the chain's"
            f" sequence has {expected} residues; {len(wrong)} of {len(widths)} rows differ. The "
            "alignment belongs to another sequence or is damaged: search or fetch it again."
        )


def _encode_rows(
    symbols: NDArray[np.uint8], width: int, names: Sequence[str], source: str
) -> NDArray[np.uint8]:
    """Return the codes ``[N, L]`` of the aligned columns' letters ``[N * L]``."""
    codes = _CODES[symbols]
    invalid = np.flatnonzero(codes == _INVALID)
    if len(invalid):
        row, column = divmod(int(invalid[0]), width)
        raise InputError(
            f"{source}: row {row + 1} ({names[row]}), column {column + 1} holds "
            f"{chr(symbols[invalid[0]])!r}, expected a residue letter or '-'. The file is damaged: "
            "search or fetch it again."
        )
    return codes.reshape(len(names), width)


def _checked_query(
    row: NDArray[np.uint8], sequence: str, other_parents: Mapping[int, str], source: str
) -> tuple[NDArray[np.uint8], int]:
    """Return the codes of the chain's sequence, with which the first row must agree.

    And the number of modified residues that have another parent in the first row.
    """
    query = encode_sequence(sequence)
    differs = np.flatnonzero((row != query) & (row != UNKNOWN) & (query != UNKNOWN))
    is_other_parent = [MSA_SYMBOLS[row[i]] in other_parents.get(int(i), "") for i in differs]
    differs = differs[~np.array(is_other_parent, bool)]
    if len(differs):
        column = int(differs[0])
        raise InputError(
            f"{source}: the query differs from the chain's sequence in {len(differs)} of "
            f"{len(query)} columns; first in column {column + 1}: {MSA_SYMBOLS[row[column]]!r} in "
            f"the alignment, {sequence[column]!r} in the chain. The alignment belongs to another "
            "sequence: search or fetch it again."
        )
    return query, sum(is_other_parent)


def merge(alignments: Sequence[Alignment]) -> Alignment:
    """Stack alignments of one query and drop duplicates.

    Of rows that are the same in every column (deletions do not count), the first is kept; so the
    query stays row 0. AlphaFold2 does this with letters, here codes are compared: rows that differ
    only in B/D, U/C, Z/E or J/O/X count as the same.

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


def read_folder(
    chain_folder: Path,
    sequence: str,
    names: Sequence[str],
    other_parents: Mapping[int, str] = NO_OTHER_PARENTS,
    limits: Limits | None = None,
) -> Alignment:
    """Read ``<chain_folder>/a3m/<name>.a3m`` for each name and merge them in this order.

    A chain need not have all of them (a database may have nothing to say), but at least one.
    Without ``limits`` all rows are taken of each.

    Raises
    ------
    InputError
        None of the files is there, or one of them cannot be used.
    """
    paths = [chain_folder / "a3m" / f"{name}.a3m" for name in names]
    present = [path for path in paths if path.is_file()]
    if not present:
        raise InputError(
            f"{chain_folder / 'a3m'}: has none of {', '.join(path.name for path in paths)}. Fetch "
            f"or search the alignments of {chain_folder.name}, or correct data.alignments; the "
            "query alone is a valid alignment."
        )
    return read_files(paths, sequence, other_parents, limits)


def read_files(
    paths: Sequence[Path],
    sequence: str,
    other_parents: Mapping[int, str] = NO_OTHER_PARENTS,
    limits: Limits | None = None,
) -> Alignment:
    """Read those of a chain's a3m files that are there and merge them, as `read_folder` does."""
    alignments = []
    for number, path in enumerate(paths):
        if path.is_file():
            alignment = read_a3m(path, sequence, other_parents)
            alignment = replace(alignment, part=np.full(len(alignment), number))
            limit = None if limits is None else limits(path.stem)
            alignments.append(alignment.first(limit, path.stem))
    return merge(alignments)


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


def _split_records(content: bytes, source: str) -> tuple[list[str], list[bytes]]:
    """Return the names and the unwrapped rows of an a3m file, annotation rows left out."""
    names: list[str] = []
    rows: list[bytes] = []
    head, *records = (b"\n" + content.replace(b"\r", b"")).split(b"\n>")
    if any(line and not line.startswith(b"#") for line in head.split(b"\n")):
        raise InputError(
            f"{source}: begins with {head.strip()[:40]!r} instead of a '>' header, so it is not an "
            "a3m file. Search or fetch it again."
        )
    for record in records:
        header, _, body = record.partition(b"\n")
        name = header.split()[0] if header.strip() else b""
        if name in _ANNOTATIONS:
            continue
        names.append(name.decode("utf-8", "replace"))
        # Dots are optional padding of insert columns, they stand for nothing.
        rows.append(body.translate(None, delete=b"\n ."))
    return names, rows
