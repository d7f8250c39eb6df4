"""Read multiple sequence alignments in a3m format.

No other module knows letters: all others see AlphaFold2's residue numbers. Rare letters become what
AlphaFold2 makes of them: B -> D, U -> C, Z -> E, J and O -> X.

Shapes: ``N`` rows, ``L`` columns (the query's residues).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import GAP, MSA_SYMBOLS, UNKNOWN
from scalefold.errors import InputError
from scalefold.raw.alignment import NO_OTHER_PARENTS, ROW_SOURCES, Alignment, merge

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


def parse_a3m(
    content: bytes,
    sequence: str,
    source: str,
    row_source: int = 0,
    other_parents: Mapping[int, str] = NO_OTHER_PARENTS,
) -> Alignment:
    """Parse an a3m alignment whose first row is the chain ``sequence``.

    The query row must agree with ``sequence`` in every column. ``X`` on either side agrees with
    anything, since one tool writes a modified residue as its parent, another as ``X``. A modified
    residue agrees with any of its parents. Row 0 of the result is ``sequence`` itself. Rows keep
    the file's order, duplicates included. HH-suite's annotation rows (``ss_pred`` and the like) are
    left out.

    Parameters
    ----------
    other_parents
        Of the chain, see :class:`~scalefold.raw.mmcif.Chain`.

    Raises
    ------
    InputError
        The file has no row, text before the first header, a row of another width, an invalid
        symbol, or a query that is not the chain's sequence.
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
    """Check the first row, and return the codes of the chain's sequence.

    Returns as well how many modified residues have another parent in the first row.
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


def read_folder(
    chain_folder: Path,
    sequence: str,
    names: Sequence[str],
    other_parents: Mapping[int, str] = NO_OTHER_PARENTS,
    limits: Limits | None = None,
) -> Alignment:
    """Read ``<chain_folder>/a3m/<name>.a3m`` for each name and merge them in this order.

    A chain may lack some of them, since a database may have no hit, but not all. Without ``limits``
    all rows are taken.

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
    """Read the a3m files that exist, and merge them, as `read_folder` does."""
    alignments = []
    for number, path in enumerate(paths):
        if path.is_file():
            code = ROW_SOURCES.index(path.stem) if path.stem in ROW_SOURCES else 0
            content = path.read_bytes()
            alignment = parse_a3m(content, sequence, str(path), code, other_parents)
            alignment = replace(alignment, part=np.full(len(alignment), number))
            limit = None if limits is None else limits(path.stem)
            alignments.append(alignment.first(limit, path.stem))
    return merge(alignments)


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
        # Dots are optional padding of insert columns.
        rows.append(body.translate(None, delete=b"\n ."))
    return names, rows
