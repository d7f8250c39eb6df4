"""Folders with facts about many chains: alignments, and structures."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from scalefold.chains.candidates import Candidate, SkippedEntries
from scalefold.errors import InputError
from scalefold.progress import LiveLine
from scalefold.raw.chain_key import is_chain_key
from scalefold.raw.compressed import read_lines
from scalefold.raw.outline import Outline, read_outline
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES, structure_suffix

logger = logging.getLogger(__name__)

DUPLICATES: Final = "duplicate_pdb_chains.txt"
_CHUNK: Final = 32
_Read = TypeVar("_Read")


def read_duplicates(path: Path) -> Iterator[Candidate]:
    """Read OpenProteinSet's list of identical chains, one line a sequence."""
    for line in read_lines(path):
        yield from map(Candidate, line.split())


def read_open_protein_set(folder: Path, notes: SkippedEntries) -> Iterator[Candidate]:
    """Yield the chains with alignments: those with a folder, and all identical ones."""
    folders = chain_folders(folder / "pdb")
    there = set(folders)
    duplicates = folder / DUPLICATES
    if duplicates.is_file():
        for line in read_lines(duplicates):
            chains = line.split()
            if not there or not there.isdisjoint(chains):
                yield from map(Candidate, chains)
            elif chains:
                what = f"{duplicates}: lines without a folder in {folder / 'pdb'}"
                notes.add(what, repr(chains[0][:80]))
    yield from map(Candidate, folders)


def chain_folders(folder: Path) -> list[str]:
    """Return the names of the folders below that are chain keys, sorted."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if is_chain_key(e.name) and e.is_dir())


def structure_files(folder: Path) -> list[Path]:
    """Return all structures in a folder and its subfolders; links to folders are not followed."""
    return sorted(
        path
        for place, _, names in os.walk(folder)
        for name in names
        if name.endswith(STRUCTURE_SUFFIXES) and (path := Path(place, name)).is_file()
    )


def read_structures(files: list[Path], jobs: int, notes: SkippedEntries) -> Iterator[Candidate]:
    """Read the chains of structures, in several processes; unreadable files are noted."""
    capitals = [path.name for path in files if path.name != path.name.lower()]
    if capitals:
        logger.warning(
            "structures with capitals in their names: %s, first %r. The list names entries in "
            "lower case, and fetch finds only files named so: rename them, as %s. scalefold "
            "finetune takes any name",
            f"{len(capitals):,}",
            capitals[0],
            capitals[0].lower(),
        )
    formats = Counter(structure_suffix(path.name) for path in files)
    if len(formats) > 1:
        logger.warning(
            "structures of several formats: %s. A run reads one of them, which "
            "data.mirrors.mmcif_path ends in, and sets the chains of the others aside: `scalefold "
            "convert` writes them all as .cif.gz. scalefold finetune takes all formats",
            ", ".join(f"{count:,} {suffix}" for suffix, count in formats.most_common()),
        )
    with LiveLine("structures", len(files), seconds_between_lines=30) as line:
        for number, outline in enumerate(read_all(_outline, files, jobs), start=1):
            if isinstance(outline, str):
                notes.add("structures that cannot be read", outline)
            else:
                yield from _candidates(outline)
            if number % _CHUNK == 0 or number == len(files):
                line.show(number, "")


def read_all(read: Callable[[Path], _Read], files: list[Path], jobs: int) -> Iterator[_Read]:
    """Yield the result for each file; many files are read in ``jobs`` other processes."""
    if jobs == 1 or len(files) <= _CHUNK:
        yield from map(read, files)
        return
    # Spawned, since torch and others may hold threads that a fork would lose.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(read, files, chunksize=_CHUNK)


def _outline(path: Path) -> Outline | str:
    try:
        return read_outline(path)
    except InputError as error:
        return " ".join(str(error).split())  # of a parser it may have lines


def _candidates(outline: Outline) -> Iterator[Candidate]:
    labels: dict[str, list[str]] = {}
    for chain in outline.chains:
        labels.setdefault(chain.chain_key, []).append(chain.label_asym_id)
    for chain in outline.chains:
        yield Candidate(
            chain.chain_key,
            chain.sequence,
            chain.entity,
            ";".join(labels[chain.chain_key]),
            outline.release_date,
            outline.resolution,
            outline.method or None,
            num_observed=chain.num_observed,
        )
