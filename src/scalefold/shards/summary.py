"""What packing one bucket has done: the small JSON file beside each bucket's shard.

Later stages read these instead of the shards; readers of the finished folder do not need them.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalefold.config.identity import PACKING_KEYS
from scalefold.errors import InputError
from scalefold.raw.chains import Rejected
from scalefold.shards.atomic import write_bytes
from scalefold.shards.manifest import SourceFile
from scalefold.shards.schema import SCHEMA_VERSION, summary_file
from scalefold.shards.writer import ShardFacts


@dataclass(frozen=True)
class BucketHead:
    """What every summary states.

    Parameters
    ----------
    family, bucket
        Which shard.
    schema_version, config_hash
        With what it was packed (:func:`scalefold.config.identity.packing_hash`).
    shard
        The shard's size and hash.
    rejected
        Chains that were set aside in this stage, and why.
    sources
        The raw files that were read.
    """

    family: str
    bucket: int
    schema_version: int
    config_hash: str
    shard: ShardFacts
    rejected: tuple[Rejected, ...]
    sources: tuple[SourceFile, ...]


@dataclass(frozen=True)
class ChainFacts:
    """One row of a chain shard; ``seq_id`` is hexadecimal, ``release_date`` ISO."""

    chain_key: str
    row: int
    seq_id: str
    origin: str
    length: int
    resolution: float | None
    release_date: str | None
    cluster_id: str | None
    max_single_residue_fraction: float

    @property
    def date(self) -> datetime.date | None:
        """The release date."""
        return None if self.release_date is None else datetime.date.fromisoformat(self.release_date)


@dataclass(frozen=True)
class ChainSummary:
    """A bucket's chain shard."""

    head: BucketHead
    rows: tuple[ChainFacts, ...]


@dataclass(frozen=True)
class AlignmentFacts:
    """One row of an msa shard; ``chain_key`` is the chain whose files were read."""

    row: int
    seq_id: str
    origin: str
    chain_key: str


@dataclass(frozen=True)
class MsaSummary:
    """A bucket's msa shard, and what became of the template hits, by reason."""

    head: BucketHead
    rows: tuple[AlignmentFacts, ...]
    template_hits: dict[str, int]


def write_summary(folder: Path, summary: ChainSummary | MsaSummary) -> None:
    """Write a summary atomically to its place in the shard folder."""
    path = folder / summary_file(summary.head.family, summary.head.bucket)
    write_bytes(path, (json.dumps(asdict(summary), indent=1) + "\n").encode())


def read_chain_summary(folder: Path, bucket: int, config_hash: str) -> ChainSummary:
    """Read a bucket's chain summary.

    Raises
    ------
    InputError
        It is missing, damaged, or was packed with other settings or by another version.
    """
    tree, head = _read(folder, "chain", bucket, config_hash, "structures")
    return ChainSummary(head, tuple(ChainFacts(**row) for row in tree["rows"]))


def read_msa_summary(folder: Path, bucket: int, config_hash: str) -> MsaSummary:
    """Read a bucket's msa summary; raises as :func:`read_chain_summary`."""
    tree, head = _read(folder, "msa", bucket, config_hash, "alignments")
    rows = tuple(AlignmentFacts(**row) for row in tree["rows"])
    return MsaSummary(head, rows, tree["template_hits"])


def _read(
    folder: Path, family: str, bucket: int, config_hash: str, stage: str
) -> tuple[dict[str, Any], BucketHead]:
    path = folder / summary_file(family, bucket)
    fix = f"`scalefold pack --stage {stage} --bucket {bucket}` writes it."
    try:
        tree = json.loads(path.read_text("utf-8"))
        head = tree["head"]
        parsed = BucketHead(
            family=head["family"],
            bucket=head["bucket"],
            schema_version=head["schema_version"],
            config_hash=head["config_hash"],
            shard=ShardFacts(**head["shard"]),
            rejected=tuple(Rejected(**row) for row in head["rejected"]),
            sources=tuple(SourceFile(**source) for source in head["sources"]),
        )
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. {fix}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged ({type(error).__name__}: {error}). {fix}") from error
    if parsed.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema version {parsed.schema_version}, this version of scalefold writes "
            f"{SCHEMA_VERSION}. {fix}"
        )
    if parsed.config_hash != config_hash:
        raise InputError(
            f"{path}: packed with settings {parsed.config_hash}, the configuration's "
            f"{', '.join(PACKING_KEYS)} now give {config_hash}. {fix}"
        )
    return tree, parsed
