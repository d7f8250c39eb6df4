"""What is predicted: records of a FASTA file with their alignments, or chains of shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scalefold.config.data import FORMER_MAX_MSA_ROWS, ShardsConfig
from scalefold.config.identity import PRESET_LIMITS
from scalefold.errors import InputError
from scalefold.features.query import Query
from scalefold.io.atomic import file_sha256
from scalefold.raw.a3m import encode_sequence, parse_a3m, read_files
from scalefold.raw.alignment import ROW_SOURCES, source_order
from scalefold.raw.fasta import FastaRecord
from scalefold.shards.manifest import data_hash
from scalefold.shards.reader import ShardReader
from scalefold.shards.records import MsaRecord

QUERY_ALONE: Final = "query alone"

_LAYOUTS: Final = ("{}/a3m", "{}", "pdb/{}/a3m")
"""Where a folder may have a name's a3m files: as a search writes, directly, as OpenProteinSet."""


@dataclass(frozen=True)
class Target:
    """A chain to predict.

    Attributes
    ----------
    name : str
        Of its folder.
    read : callable
        Returns its query; raises an InputError if its alignments cannot be used.
    alignment : callable
        Returns an identifier of that alignment without parsing it.
    """

    name: str
    length: int
    sequence: str
    read: Callable[[], Query]
    alignment: Callable[[], str]


def fasta_targets(
    records: Iterable[FastaRecord], alignments: Path | None, shards: ShardsConfig
) -> list[Target]:
    """Make targets of sequences.

    Parameters
    ----------
    alignments : Path or None
        ``<alignments>/<name>/a3m/*.a3m``, or ``<name>/*.a3m``, or ``pdb/<name>/a3m/*.a3m``; None:
        each sequence is its whole alignment.
    shards : ShardsConfig
        How many rows are taken, as ``scalefold pack`` does.
    """

    def target(name: str, sequence: str) -> Target:
        return Target(
            name=name,
            length=len(sequence),
            sequence=sequence,
            read=lambda: _query(name, sequence, alignments, shards),
            alignment=lambda: _alignment(name, alignments, shards),
        )

    return [target(*record) for record in records]


def shard_targets(reader: ShardReader, keys: Sequence[str]) -> list[Target]:
    """Make targets of chains that were packed; their templates are used, as an evaluation does.

    Parameters
    ----------
    keys : sequence of str
        Of chains with an alignment.

    Raises
    ------
    InputError
        The shards have no such chain, or its row is damaged.
    """
    data = data_hash(reader.folder)

    def target(key: str) -> Target:
        sequence = reader.chain(key).sequence
        return Target(
            name=key,
            length=len(sequence),
            sequence=sequence,
            read=lambda: Query.of(reader.sample(key)),
            alignment=lambda: data,
        )

    return [target(key) for key in keys]


def _query(name: str, sequence: str, alignments: Path | None, shards: ShardsConfig) -> Query:
    if alignments is None:
        names = [ROW_SOURCES[0]]
        full = parse_a3m(f">{name}\n{sequence}\n".encode(), sequence, name)
    else:
        files = _files(alignments, name)
        names = [path.stem for path in files]
        full = read_files(files, sequence, limits=shards.max_rows_of)
    seq_id = hashlib.sha256(sequence.encode()).digest()
    stored = full.share(shards.max_merged_rows, names)
    return Query(name, encode_sequence(sequence), MsaRecord.of(seq_id, full, stored))


def _files(alignments: Path, name: str) -> list[Path]:
    """A target's alignments: those of known databases first, in AlphaFold2's order.

    Raises
    ------
    InputError
        There is none.
    """
    for layout in _LAYOUTS:
        if files := list((alignments / layout.format(name)).glob("*.a3m")):
            return sorted(files, key=lambda path: source_order(path.stem))
    places = ", ".join(f"{layout.format(name)}/*.a3m" for layout in _LAYOUTS)
    fix = (
        f"Move {name}.a3m into a folder {name}"
        if (alignments / f"{name}.a3m").is_file()
        else "Bring it there, as `scalefold search` and `scalefold fetch` lay it out"
    )
    raise InputError(
        f"{alignments}: has no alignment of {name}; looked for {places}. {fix}, or predict from "
        "the query alone (--query-alone)"
    )


def _alignment(name: str, alignments: Path | None, shards: ShardsConfig) -> str:
    """SHA-256 of the names and contents of the files, and of what limits their rows.

    Limits as the presets have them are left out, as earlier versions did with all.
    """
    if alignments is None:
        return QUERY_ALONE
    digest = hashlib.sha256()
    for path in _files(alignments, name):
        digest.update(f"{path.name} {file_sha256(path)}\n".encode())
    if shards.max_rows not in PRESET_LIMITS or shards.max_msa_rows != FORMER_MAX_MSA_ROWS:
        digest.update(f"{shards.max_rows!r} {shards.max_merged_rows}\n".encode())
    return digest.hexdigest()
