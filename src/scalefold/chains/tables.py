"""Files with facts about many chains: sequences, OpenFold's caches, MLPerf's table."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scalefold.chains.candidates import Candidate, date_of, resolution_of
from scalefold.errors import InputError
from scalefold.raw.chain_key import short_form
from scalefold.raw.compressed import read_lines
from scalefold.raw.json_items import json_items
from scalefold.raw.own_structures import MAX_RESIDUES

MLPERF_COLUMNS: Final = ("pdb_chain_id", "release_date", "resolution", "pdb_cluster_id", "sequence")


def read_sequences(path: Path) -> Iterator[Candidate]:
    """Read FASTA; polymers of ``pdb_seqres.txt`` that are not proteins are left out."""
    header, parts, length = "", list[str](), 0
    for line in read_lines(path):
        if line.startswith(">"):
            yield from _sequence(header, parts)
            header, parts, length = line[1:], [], 0
        elif length <= MAX_RESIDUES:  # what is longer is too long, whatever follows
            parts.append(line.strip())
            length += len(parts[-1])
    yield from _sequence(header, parts)


def _sequence(header: str, parts: list[str]) -> Iterator[Candidate]:
    name, _, about = header.partition(" ")
    if name and ("mol:" not in about or "mol:protein" in about):
        yield Candidate(name.strip(), sequence="".join(parts).removesuffix("*"))


def read_obsolete(path: Path) -> set[str]:
    """Read the entries of wwPDB's ``obsolete.dat``: ``OBSLTE    31-JUL-94 116L     216L``."""
    lines = (line.split() for line in read_lines(path) if line.startswith("OBSLTE"))
    return {short_form(words[2].lower()) for words in lines if len(words) > 2}


def read_json(path: Path) -> Iterator[Candidate]:
    """Read one of OpenFold's files: a cache of chains or of entries, or an index of alignments.

    Raises
    ------
    InputError
        The file is not a JSON object of objects.
    """
    for name, value in json_items(path):
        if "chain_ids" in value or "seqs" in value:
            yield from _of_entry(name, value)
        else:
            sequence = value.get("seq")
            yield Candidate(
                name,
                sequence=sequence if isinstance(sequence, str) else None,
                release_date=date_of(str(value.get("release_date"))),
                resolution=resolution_of(value.get("resolution")),
            )


def _of_entry(name: str, value: dict[str, Any]) -> Iterator[Candidate]:
    """Yield the chains of an entry of ``mmcif_cache.json``."""
    date = date_of(str(value.get("release_date")))
    resolution = resolution_of(value.get("resolution"))
    chains, sequences = value.get("chain_ids"), value.get("seqs")
    if not (isinstance(chains, list) and isinstance(sequences, list)):
        return
    for chain, sequence in zip(chains, sequences, strict=False):
        yield Candidate(f"{name}_{chain}", str(sequence), release_date=date, resolution=resolution)


def is_alignment_index(path: Path) -> bool:
    """Whether a JSON file is an index of OpenFold's alignment databases (``super.index``)."""
    _, value = next(json_items(path), ("", {}))
    return "db" in value and "files" in value


def read_mlperf_table(path: Path) -> Iterator[Candidate]:
    """Read ``chains.csv`` of the MLPerf HPC reference's data preparation, with its clusters.

    Raises
    ------
    InputError
        A column is missing, or a line cannot be split.
    """
    rows = csv.DictReader(read_lines(path))
    try:
        missing = set(MLPERF_COLUMNS) - set(rows.fieldnames or ())
        if missing:
            columns = ", ".join(sorted(missing))
            raise InputError(f"{path}: has no column {columns}. Name another file.")
        for row in rows:
            cluster = row["pdb_cluster_id"] or "-1"
            yield Candidate(
                row["pdb_chain_id"] or "",
                sequence=row["sequence"],
                label=row.get("mmcif_chain_ids"),
                release_date=date_of(row["release_date"] or ""),
                resolution=resolution_of(row["resolution"]),
                cluster=None if cluster == "-1" else f"mlperf_{cluster}",
            )
    except csv.Error as error:
        line = rows.line_num + 1
        raise InputError(f"{path}: line {line}: {error}. Download it again.") from error
