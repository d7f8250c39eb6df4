"""A folder of structures, of any names and forms, as the mirror that the workflow reads."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from scalefold.chains.folders import read_all, structure_files
from scalefold.errors import InputError
from scalefold.io.atomic import make_folder, write_bytes
from scalefold.progress import LiveLine
from scalefold.raw.chain_key import is_chain_key
from scalefold.raw.compressed import RAISE_LIMIT, read_bytes
from scalefold.raw.mmcif import read_entry
from scalefold.raw.own_structures import read_pdb
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES
from scalefold.raw.rejected import Rejected, cause_first

MIRROR_PATH: Final = "{entry}.cif.gz"
"""Where the mirror has an entry."""
_STAGE: Final = "structures"


@dataclass(frozen=True)
class Structures:
    """What a folder holds.

    Attributes
    ----------
    num_files : int
        Structures that were found, usable or not.
    sequences : mapping of str to str
        One-letter codes of each usable chain, by its key, sorted.
    rejected : list of Rejected
        Files and chains that cannot be used; a file's key is its path in the folder.
    """

    num_files: int
    sequences: Mapping[str, str]
    rejected: list[Rejected]


@dataclass(frozen=True)
class _Read:
    """A file's entry, its chains and its mmCIF text; or why there is none."""

    entry_id: str = ""
    sequences: tuple[tuple[str, str], ...] = ()
    content: bytes = b""
    problem: str = ""


def collect_structures(
    folder: Path, mirror: Path, max_bytes: int, jobs: int, mend: str = RAISE_LIMIT
) -> Structures:
    """Read all structures in a folder and below it, and write those that can be used to a mirror.

    A name of an entry is that of its file in lower case; of the PDB's own files the entry's. What
    the mirror has already and is the same stays untouched; what it has of other files is deleted.

    Parameters
    ----------
    mirror : Path
        Gets ``<entry>.cif.gz``.
    max_bytes : int
        Larger files, unpacked, are set aside; ``mend`` says what to do then.

    Raises
    ------
    InputError
        There is no such folder, or no structure that can be used.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "no such folder"
        raise InputError(f"{folder}: {what}. Name the folder of the structures")
    files = [path for path in structure_files(folder) if mirror not in path.parents]
    if not files:
        raise InputError(
            f"{folder}: has no structures. Their names end in {', '.join(STRUCTURE_SUFFIXES)}"
        )
    make_folder(mirror)
    file_of: dict[str, Path] = {}
    sequences: dict[str, str] = {}
    rejected: list[Rejected] = []
    with LiveLine("structures", len(files), seconds_between_lines=30) as line:
        found = zip(
            files,
            read_all(partial(_read, max_bytes=max_bytes, mend=mend), files, jobs),
            strict=True,
        )
        for number, (path, read) in enumerate(found, start=1):
            name = path.relative_to(folder).as_posix()
            named = {key: text for key, text in read.sequences if is_chain_key(key)}
            problem = _problem(read, named, file_of.get(read.entry_id))
            if problem:
                rejected.append(Rejected(name, _STAGE, problem))
            else:
                rejected += [_unnamed(key) for key, _ in read.sequences if key not in named]
                file_of[read.entry_id] = path
                sequences |= named
                _write(mirror / MIRROR_PATH.format(entry=read.entry_id), read.content)
            line.show(number, "")
    if not sequences:
        raise InputError(
            f"{folder}: none of {len(files)} structures can be used. {rejected[0].chain_key}: "
            f"{rejected[0].reason}"
        )
    for old in mirror.glob("*"):
        if old.name.removesuffix(".cif.gz") not in file_of:
            old.unlink()
    return Structures(len(files), dict(sorted(sequences.items())), rejected)


def _read(path: Path, max_bytes: int, mend: str) -> _Read:
    try:
        entry = read_entry(path, max_bytes, mend)
        content = read_bytes(path)
        if ".cif" not in path.suffixes:
            content = read_pdb(content, str(path)).as_string().encode()
    except InputError as error:
        # of a parser it may have lines
        return _Read(problem=cause_first(" ".join(str(error).split())))
    chains = tuple((chain.chain_key, chain.sequence) for chain in entry.chains)
    return _Read(entry.entry_id, chains, content)


def _problem(read: _Read, named: Mapping[str, str], other: Path | None) -> str:
    """Say why a file cannot be used, which may be that ``other`` is of the same entry."""
    if other is not None:
        return (
            f"entry {read.entry_id} is also that of {other.name}: rename one of the files, or "
            "remove it"
        )
    if read.problem or named:
        return read.problem
    return (
        f"no chain of entry {read.entry_id!r} can be listed. Name the file with 4 or more letters, "
        "digits, - and _, as in design-0001.pdb"
    )


def _unnamed(chain_key: str) -> Rejected:
    reason = (
        "the key cannot be a file's name: the entry may have 4 or more letters, digits, - and _, "
        "the chain letters, digits, ., + and -. Rename the file or the chain"
    )
    return Rejected(chain_key, _STAGE, reason)


def _write(path: Path, content: bytes) -> None:
    """Write a gzipped file, unless it is there with the same content: a newer one is read again."""
    packed = gzip.compress(content, mtime=0)
    if not path.is_file() or path.read_bytes() != packed:
        write_bytes(path, packed)
