"""Read protein sequences from a FASTA file; records that cannot be used are set aside."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from scalefold.errors import InputError, UnreadableError
from scalefold.raw.compressed import GZIP_MAGIC

logger = logging.getLogger(__name__)

_MAX_RESIDUES: Final = 20_000
"""Of the longest sequence that is taken: HH-suite's own limit."""
# Folders and files get these names. UniProt's titles have bars: sp|P00974|BPT1_BOVIN.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+|:=,@-]{0,119}")
_ODD: Final = re.compile(r"[^A-Za-z\s]")
_MEANINGS: Final = {
    "*": " (a stop)",
    "-": " (a gap)",
    ".": " (a gap)",
    ":": " (joins the chains of a complex, but each record is one chain)",
}
_BASES: Final = frozenset("ACGTUN")
_FEWEST_BASES: Final = 20  # shorter ones may well be peptides
_SHOWN: Final = 40


class FastaRecord(NamedTuple):
    """A protein sequence and its name.

    Parameters
    ----------
    name
        The first word of the title. It can name a folder, and no other record has it.
    sequence
        Upper-case residue letters, at least one that is not ``X``.
    """

    name: str
    sequence: str


class RejectedRecord(NamedTuple):
    """A record that cannot be used.

    Parameters
    ----------
    line
        From 1: of the character that is no letter if that is the reason, otherwise of the title.
    name
        The first word of its title: as it is if it is a valid name, else as Python writes it.
    reason
        One line: what was found, and how to fix it.
    """

    line: int
    name: str
    reason: str


class Fasta(NamedTuple):
    """The content of a FASTA file: ``records, rejected = read_fasta(path)``, in its order."""

    records: list[FastaRecord]
    rejected: list[RejectedRecord]


def read_fasta(path: Path) -> Fasta:
    """Read the protein sequences of a file.

    Lower-case letters become upper-case, and blanks are left out. A record is set aside if its name
    cannot name a folder or is taken. It is also set aside if its sequence is empty or too long, has
    only unknown residues, looks like DNA or RNA, or has anything but letters, such as gaps. One
    that may be DNA or a protein is taken, with a warning.

    Parameters
    ----------
    path
        Text; Windows line ends are fine.

    Raises
    ------
    InputError
        The file is missing, not readable or gzipped, or has no record.
    """
    try:
        content = path.read_bytes()
    except PermissionError as error:
        raise UnreadableError.of(path) from error
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read as a FASTA file ({error.strerror}). Correct the path"
        ) from error
    if content.startswith(GZIP_MAGIC):
        raise InputError(f"{path}: is gzipped, expected a FASTA file as plain text. Unpack it")
    text = content.decode("utf-8-sig", errors="replace")
    found = Fasta([], [])
    line_of: dict[str, int] = {}
    for line, title, parts in _split(text):
        name = (title.split() or [""])[0]
        letters = "".join("".join(parts).split())
        reason = _name_reason(name, line_of)
        if reason is None and _ODD.search(letters):
            line += next(number for number, part in enumerate(parts, 1) if _ODD.search(part))
        reason = reason or _sequence_reason(letters)
        if reason is None:
            sequence = letters.upper()
            found.records.append(FastaRecord(name, sequence))
            line_of[name] = line
            if _has_bases_only(sequence):
                logger.warning(
                    "%s, line %s: %s is taken as a protein, though all its letters are those of "
                    "bases, too. Translate it if it is DNA or RNA",
                    path,
                    line,
                    name,
                )
        else:
            shown = name if _NAME.fullmatch(name) else _shown(name)
            found.rejected.append(RejectedRecord(line, shown, reason))
    if not found.records and not found.rejected:
        raise InputError(
            f"{path}: has no record. Each begins with a line '>name', the lines after it are its "
            "sequence"
        )
    return found


def part_of(record: FastaRecord, num_parts: int) -> int:
    """Return the part that has this record, if jobs divide sequences into ``num_parts``."""
    digest = hashlib.sha256(record.sequence.encode()).digest()
    return int.from_bytes(digest[:8], "big") % num_parts


def _split(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield line number and title of each record, and the lines of its sequence."""
    line, title, parts = 0, "", list[str]()
    for number, content in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        if not content.startswith(">"):
            parts.append(content)
            continue
        if line or "".join(parts).strip():
            yield line or 1, title, parts
        line, title, parts = number, content[1:], []
    if line or "".join(parts).strip():
        yield line or 1, title, parts


def _name_reason(name: str, line_of: dict[str, int]) -> str | None:
    if not name:
        return "has no name: begin it with a line '>name'"
    if not _NAME.fullmatch(name):
        return (
            "its name cannot be a folder's: give it one of at most 120 letters, digits and "
            "._+|:=,@- that begins with a letter or digit"
        )
    if name in line_of:
        return f"line {line_of[name]} has a record of this name: rename one of them"
    return None


def _sequence_reason(letters: str) -> str | None:
    if not letters:
        return "has no sequence: add it, or remove the record"
    odd = _ODD.search(letters)
    if odd is not None:
        what = _MEANINGS.get(odd[0], "")
        return (
            f"residue {odd.start() + 1} is {odd[0]!r}{what}, expected a letter: correct or "
            "remove it"
        )
    sequence = letters.upper()
    if len(sequence) > _MAX_RESIDUES:
        return (
            f"has {len(sequence):,} residues, and at most {_MAX_RESIDUES:,} are taken: cut it into "
            "domains"
        )
    if set(sequence) == {"X"}:
        return "all its residues are X, unknown: nothing can be searched or predicted with it"
    if _has_bases_only(sequence) and {"A", "C", "G"} < set(sequence):
        return "looks like DNA or RNA: its letters are those of bases only. Translate it"
    return None


def _has_bases_only(sequence: str) -> bool:
    return len(sequence) >= _FEWEST_BASES and set(sequence) <= _BASES


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")
