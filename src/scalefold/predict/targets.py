"""What is predicted: records of a FASTA file with their alignments, or chains of shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scalefold.config.data import ShardsConfig
from scalefold.errors import InputError
from scalefold.features.query import Query
from scalefold.io.atomic import file_sha256
from scalefold.raw.alignments import (
    ROW_SOURCES,
    encode_sequence,
    parse_a3m,
    read_folder,
    source_order,
)
from scalefold.raw.fasta import FastaRecord
from scalefold.shards.manifest import data_hash
from scalefold.shards.reader import ShardReader
from scalefold.shards.records import MsaRecord

QUERY_ALONE: Final = "query alone"


@dataclass(frozen=True)
class Target:
    """A chain to predict.

    Attributes
    ----------
    name : str
        Of its folder.
    length : int
        Residues.
    sequence : str
    read : callable
        Returns its query; raises an InputError if its alignments cannot be used.
    alignment : callable
        Identifies the alignment that `read` gives, without reading it as such.
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
    records : iterable of FastaRecord
    alignments : Path or None
        ``<alignments>/<name>/a3m/*.a3m``; None: each sequence is its whole alignment.
    shards : ShardsConfig
        How many rows are taken, as ``scalefold pack`` does.
    """

    def target(name: str, sequence: str) -> Target:
        folder = None if alignments is None else alignments / name
        return Target(
            name=name,
            length=len(sequence),
            sequence=sequence,
            read=lambda: _query(name, sequence, folder, shards),
            alignment=lambda: QUERY_ALONE if folder is None else _hash(_files(folder)),
        )

    return [target(*record) for record in records]


def shard_targets(reader: ShardReader, keys: Sequence[str]) -> list[Target]:
    """Make targets of chains that were packed; their templates are used, as an evaluation does.

    Parameters
    ----------
    reader : ShardReader
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


def _query(name: str, sequence: str, folder: Path | None, shards: ShardsConfig) -> Query:
    if folder is None:
        names = [ROW_SOURCES[0]]
        full = parse_a3m(f">{name}\n{sequence}\n".encode(), sequence, name)
    else:
        names = [path.stem for path in _files(folder)]
        full = read_folder(folder, sequence, names, limits=shards.max_rows_of)
    seq_id = hashlib.sha256(sequence.encode()).digest()
    stored = full.share(shards.max_merged_rows, names)
    return Query(name, encode_sequence(sequence), MsaRecord.of(seq_id, full, stored))


def _files(folder: Path) -> list[Path]:
    """A target's alignments: those of known databases first, in AlphaFold2's order.

    Raises
    ------
    InputError
        There is none.
    """
    files = list((folder / "a3m").glob("*.a3m"))
    if not files:
        raise InputError(f"{folder / 'a3m'}: has no *.a3m. {_mend(folder)}")
    return sorted(files, key=lambda path: source_order(path.stem))


def _mend(folder: Path) -> str:
    """What to do about a target without alignments; other usual layouts are known."""
    below = folder.parent / "pdb"
    if any((below / folder.name / "a3m").glob("*.a3m")):
        return f"They are in {below}: give that folder"
    if any(folder.glob("*.a3m")):
        return f"They are in {folder}: move them to the folder a3m there"
    return (
        "Bring its alignments there, as `scalefold search` and `scalefold fetch` lay them out, or "
        "predict from the query alone (--query-alone)"
    )


def _hash(files: Iterable[Path]) -> str:
    """SHA-256 of the names and contents of files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {file_sha256(path)}\n".encode())
    return digest.hexdigest()
