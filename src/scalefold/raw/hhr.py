"""Read hhsearch's result files (hhr).

Biopython's reader is not used: it drops ``Sum_probs``, by which templates are ranked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from scalefold.errors import InputError
from scalefold.raw.aligned_hit import AlignedHit, present
from scalefold.raw.alignment import NO_OTHER_PARENTS

_QUERY_COLUMNS: Final = re.compile(r"^Match_columns\s+(\d+)", re.MULTILINE)
_COMMAND: Final = re.compile(r"^Command +(.*)$", re.MULTILINE)
# The list of hits, one a line, ends with an empty line.
_LIST: Final = re.compile(r"^ No Hit\b.*\n((?:.+\n)*)\n", re.MULTILINE)
# hhsearch's limits of what it writes: least hits listed, least and most hits shown.
_DEFAULT_LIMITS: Final = {"-z": 10, "-b": 10, "-B": 500}
_FIELD: Final = re.compile(r"([\w-]+)=(\S+)")
_ROW: Final = re.compile(r"^([QT]) (\S+)\s+(\d+) ([A-Za-z-]+)\s+(\d+) \((\d+)\)\s*$")
_ANNOTATIONS: Final = frozenset({"Consensus", "ss_dssp", "ss_pred", "ss_conf", "sa_dssp"})
_FIELDS: Final = (
    "Probab",
    "E-value",
    "Score",
    "Aligned_cols",
    "Identities",
    "Similarity",
    "Sum_probs",
)
_MOST: Final = 1e9
_RANGES: Final = {"Probab": (0.0, 100.0), "Identities": (0.0, 100.0), "Sum_probs": (0.0, _MOST)}
"""Least and most that a field may be; others are at most 1e9 either way."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HhrHit(AlignedHit):
    """One hit of hhsearch.

    Parameters
    ----------
    number
        The hit's number in the file, from 1.
    aligned_columns
        Pairs of match columns.
    identities
        Fraction of identical pairs.
    template_neff
        Diversity of the template's alignment, ``None`` if the file does not state it.
    query_length, template_length
        Match columns of the two profiles.
    """

    number: int
    name: str
    e_value: float
    score: float
    aligned_columns: int
    identities: float
    similarity: float
    template_neff: float | None
    query_length: int
    template_length: int


def read_hhr(
    path: Path, query_sequence: str, other_parents: Mapping[int, str] = NO_OTHER_PARENTS
) -> list[HhrHit]:
    """Read a result file, see :func:`parse_hhr`."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. Fetch it, or correct the path.") from error
    return parse_hhr(text, query_sequence, str(path), other_parents)


def parse_hhr(
    text: str, query_sequence: str, source: str, other_parents: Mapping[int, str] = NO_OTHER_PARENTS
) -> list[HhrHit]:
    """Parse the hits of an hhr file, in the file's order; there may be none.

    Parameters
    ----------
    query_sequence
        The chain's sequence: its length and the letters of every aligned stretch are checked
        (``X`` on either side agrees with anything).
    other_parents
        Of the chain, see :class:`~scalefold.raw.mmcif.Chain`: these letters agree as well.

    Raises
    ------
    InputError
        The file is not an hhr file, is cut off, has inconsistent positions, or is of another query.
    """
    columns = _QUERY_COLUMNS.search(text)
    if columns is None:
        raise InputError(
            f"{source}: has no 'Match_columns' line, so it is not an hhr file of hhsearch. Search "
            "or fetch it again."
        )
    if _whole(columns[1], "Match_columns", source) != len(query_sequence):
        raise InputError(
            f"{source}: the query has {columns[1]} columns, the chain's sequence has "
            f"{len(query_sequence)} residues. The file belongs to another sequence: search or "
            "fetch it again."
        )
    _, *sections = re.split(r"^No (?=\d+\s*$)", text, flags=re.MULTILINE)
    _check_complete(text, len(sections), source)
    return [_parse_hit(section, query_sequence, other_parents, source) for section in sections]


def _check_complete(text: str, num_shown: int, source: str) -> None:
    """Refuse a file that shows fewer hits than hhsearch would show of the listed ones.

    hhsearch always shows the first ``-b`` hits, and more if they are good, up to ``-B``. It lists
    hits by the same rule with ``-z`` in place of ``-b`` (HitList::PrintHitList and PrintAlignments
    of HH-suite 3). So it shows all listed hits unless ``-b`` is below ``-z``.
    """
    hits = _LIST.search(text)
    if hits is None:
        raise InputError(
            f"{source}: its list of hits ('No Hit', ended by an empty line) is not there. The file "
            "is cut off: search or fetch it again."
        )
    command = _COMMAND.search(text)
    words = command[1].split() if command else []
    stated = {o: n for o, n in pairwise(words) if o in _DEFAULT_LIMITS and n.isdecimal()}
    limits = _DEFAULT_LIMITS | {o: _whole(n, o, source) for o, n in stated.items()}
    num_listed = hits[1].count("\n")
    least = num_listed if limits["-b"] >= limits["-z"] else min(num_listed, limits["-b"])
    least = min(least, limits["-B"])
    if num_shown < least:
        options = " ".join(f"{option} {number}" for option, number in limits.items())
        raise InputError(
            f"{source}: {num_shown} hits are shown, {num_listed} are listed; with {options}, "
            f"hhsearch shows {least} or more. The file is cut off: search or fetch it again."
        )


def _parse_hit(
    section: str, query_sequence: str, other_parents: Mapping[int, str], source: str
) -> HhrHit:
    lines = section.splitlines()
    number = _whole(lines[0].strip(), "a hit's number", source)
    where = f"{source}: hit {number}"
    if len(lines) < 3 or not lines[1].startswith(">"):
        raise InputError(f"{where} has no title. The file is cut off: search or fetch it again.")
    name = lines[1][1:].strip()
    if not name:
        raise InputError(f"{where} has no name. The file is damaged: search or fetch it again.")
    entry, _, chain = name.split()[0].rpartition("_")
    where += f" ({name.split()[0]})"
    fields = _parse_fields(lines[2], where)
    query, template = (_join_rows(lines[3:], side, where) for side in "QT")
    _check_columns(query, template, fields["Aligned_cols"], where)
    _check_query(query, query_sequence, other_parents, where)
    return HhrHit(
        number=number,
        name=name,
        chain_key=f"{entry.lower()}_{chain}",
        probability=fields["Probab"],
        e_value=fields["E-value"],
        score=fields["Score"],
        aligned_columns=int(fields["Aligned_cols"]),
        identities=fields["Identities"] / 100.0,
        similarity=fields["Similarity"],
        sum_probs=fields["Sum_probs"],
        template_neff=fields.get("Template_Neff"),
        query_length=query.length,
        template_length=template.length,
        query_start=query.start,
        template_start=template.start,
        query_aligned=query.letters,
        template_aligned=template.letters,
    )


def _parse_fields(line: str, where: str) -> dict[str, float]:
    """Return the numbers of a hit's line ``Probab=99.50  E-value=...``."""
    fields: dict[str, float] = {}
    for field, value in _FIELD.findall(line):
        least, most = _RANGES.get(field, (-_MOST, _MOST))
        try:
            number = float(value.removesuffix("%"))
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise InputError(
                f"{where}: {field} is {value[:20]!r}, expected a number from {least:g} to "
                f"{most:g}. The file is damaged: search or fetch it again."
            )
        fields[field] = number
    missing = [field for field in _FIELDS if field not in fields]
    if missing:
        raise InputError(
            f"{where} lacks {', '.join(missing)}. The file is cut off or not of hhsearch 3: search "
            "or fetch it again."
        )
    return fields


def _whole(text: str, what: str, where: str) -> int:
    """Return a number of residues, columns or hits."""
    if len(text) > 9 or not text.isdecimal():
        raise InputError(
            f"{where}: {what} is {text[:20]!r}, expected a whole number of at most 9 digits. The "
            "file is damaged: search or fetch it again."
        )
    return int(text)


class _Row(NamedTuple):
    """One side of an alignment: its letters with gaps, and which residues of how many they are."""

    letters: str
    start: int
    end: int
    length: int


def _join_rows(lines: Sequence[str], side: str, where: str) -> _Row:
    """Join the rows of one side, ``Q`` or ``T``, which a file breaks into blocks."""
    letters, start, end, length = "", 0, 0, 0
    for line in lines:
        row = _ROW.match(line)
        if row is None or row[1] != side or row[2] in _ANNOTATIONS:
            continue
        block, numbers = row[4].upper(), (row[3], row[5], row[6])
        first, last, length = (_whole(n, f"a number of row {side}", where) for n in numbers)
        first -= 1
        if not letters:
            start = end = first
        residues = len(block) - block.count("-")
        if first < 0 or first != end or first + residues != last or last > length:
            raise InputError(
                f"{where}: row {side} states residues {first + 1}-{last} of {length}, expected "
                f"{end + 1}-{end + residues} by its letters. The file is damaged: search or fetch "
                "it again."
            )
        letters, end = letters + block, last
    return _Row(letters, start, end, length)


def _check_columns(query: _Row, template: _Row, stated: float, where: str) -> None:
    """Check that as many columns as ``stated`` have a residue on both sides."""
    if not query.letters or len(query.letters) != len(template.letters):
        raise InputError(
            f"{where}: {len(query.letters)} query and {len(template.letters)} template columns. "
            "The file is cut off: search or fetch it again."
        )
    pairs = int((present(query.letters) & present(template.letters)).sum())
    if pairs != stated:
        raise InputError(
            f"{where}: {pairs} pairs are shown, Aligned_cols is {stated:g}. The file is cut "
            "off: search or fetch it again."
        )


def _check_query(query: _Row, sequence: str, other_parents: Mapping[int, str], where: str) -> None:
    stretch, expected = query.letters.replace("-", ""), sequence[query.start : query.end]
    if len(stretch) != len(expected) or any(
        a != b and "X" not in (a, b) and a not in other_parents.get(i, "")
        for i, (a, b) in enumerate(zip(stretch, expected, strict=False), query.start)
    ):
        raise InputError(
            f"{where}: query residues {query.start + 1}-{query.end} are {stretch[:30]}..., the "
            f"chain has {expected[:30]}... there. The file belongs to another sequence: search or "
            "fetch it again."
        )
