"""The kinds of files and folders that a user names, and the chains in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from scalefold.chains.candidates import Candidate, Candidates, SkippedEntries
from scalefold.chains.folders import (
    DUPLICATES,
    chain_folders,
    read_duplicates,
    read_open_protein_set,
    read_structures,
    structure_files,
)
from scalefold.chains.packed import read_shards
from scalefold.chains.tables import (
    MLPERF_COLUMNS,
    is_alignment_index,
    read_json,
    read_mlperf_table,
    read_obsolete,
    read_sequences,
)
from scalefold.errors import InputError
from scalefold.raw.chain_key import is_chain_key
from scalefold.raw.compressed import read_text_pieces
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES
from scalefold.shards.schema import INDEX_FILE

logger = logging.getLogger(__name__)

Kind = Literal[
    "OpenProteinSet", "alignments", "identical chains", "index of alignments",
    "structures", "shards", "sequences", "cache", "MLPerf's table",
    "obsolete entries",
]  # fmt: skip
_OF_ALIGNMENTS = ("OpenProteinSet", "alignments", "identical chains", "index of alignments")
"""Each chain of these has an alignment."""
_OBSOLETE_HEAD = "LIST OF OBSOLETE"
_EXPECTED = (
    f"OpenProteinSet's folder or {DUPLICATES}, a folder of structures or of alignments "
    "(<entry>_<chain>/), packed shards, pdb_seqres.txt.gz or another FASTA file, mmcif_cache.json, "
    "chain_data_cache.json, super.index, MLPerf's chains.csv, or obsolete.dat"
)


def recognise(path: Path) -> Kind:
    """Find out the kind of a file or folder by its content.

    Raises
    ------
    InputError
        It does not exist, or has no known kind.
    """
    if path.is_dir():
        return _kind_of_folder(path)
    return "structures" if path.name.endswith(STRUCTURE_SUFFIXES) else _kind_of_file(path)


def _kind_of_folder(path: Path) -> Kind:
    if (path / DUPLICATES).is_file() or chain_folders(path / "pdb"):
        return "OpenProteinSet"
    if chain_folders(path):
        return "alignments"
    if (path / INDEX_FILE).is_file():
        return "shards"
    if structure_files(path):
        return "structures"
    raise InputError(f"{path}: holds nothing that chains are listed from. Expected {_EXPECTED}.")


def _kind_of_file(path: Path) -> Kind:
    start = next(read_text_pieces(path), "").lstrip("\r\n\t ").partition("\n")[0].rstrip()
    if start.startswith("{"):
        return "index of alignments" if is_alignment_index(path) else "cache"
    if start.startswith(">"):
        return "sequences"
    if start.startswith((_OBSOLETE_HEAD, "OBSLTE")):
        return "obsolete entries"
    if set(MLPERF_COLUMNS) <= set(start.split(",")):
        return "MLPerf's table"
    if start.startswith("chain_key\t"):
        raise InputError(f"{path}: is a list of chains already: name it in data.chains.")
    if start and is_chain_key(start.split()[0]):
        return "identical chains"
    found = f"it begins with {start[:60]!r}" if start else "it is empty"
    hint = " Give sequence clusters with --clusters." if "_" in start.split(" ")[0] else ""
    raise InputError(f"{path}: {found}. Expected {_EXPECTED}.{hint}")


def read_sources(paths: Sequence[Path], jobs: int) -> Candidates:
    """Read all facts about the chains.

    If a source has chains with alignments, only these may be listed, otherwise the chains of the
    first source. Other sources add facts. Chains of obsolete entries are left out.

    Raises
    ------
    InputError
        A source cannot be read, or no chain is found.
    """
    found = [(path, recognise(path)) for path in paths]
    sources: list[tuple[Path, Kind]] = [one for one in found if one[1] != "obsolete entries"]
    lists = [one for one in sources if one[1] in _OF_ALIGNMENTS] or sources[:1]
    candidates = Candidates()
    for path, kind in sources:
        logger.info("%s: reading (%s)", path, kind)
        chains = _read(path, kind, jobs, candidates.notes)
        count = candidates.add(chains, str(path), listed=(path, kind) in lists)
        logger.info("%s: %s chains", path, f"{count:,}")
    for path, kind in found:
        if kind == "obsolete entries":
            count = candidates.drop(read_obsolete(path))
            logger.info("%s: %s chains are obsolete, left out", path, f"{count:,}")
    for note in candidates.notes:
        logger.warning("skipped: %s", note)
    if not any(True for _ in candidates):
        raise InputError(f"{', '.join(str(path) for path in paths)}: no chain is found")
    return candidates


def _read(path: Path, kind: Kind, jobs: int, notes: SkippedEntries) -> Iterator[Candidate]:
    match kind:
        case "OpenProteinSet":
            return read_open_protein_set(path, notes)
        case "alignments":
            return map(Candidate, chain_folders(path))
        case "identical chains":
            return read_duplicates(path)
        case "structures":
            files = structure_files(path) if path.is_dir() else [path]
            return read_structures(files, jobs, notes)
        case "shards":
            return read_shards(path)
        case "sequences":
            return read_sequences(path)
        case "MLPerf's table":
            return read_mlperf_table(path)
        case _:
            return read_json(path)
