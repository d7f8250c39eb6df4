"""The result of packing one bucket: a small JSON file beside its shard.

Later stages read these instead of the shards; readers of the finished folder do not need them.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from scalefold.config.identity import former_packing_settings, packing_hashes, packing_settings
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes
from scalefold.raw.rejected import Rejected
from scalefold.shards.repack_hint import PACK_ALIGNMENTS_AGAIN, PACK_ALL_AGAIN, pack_command
from scalefold.shards.schema import FAMILY_VERSIONS, summary_file
from scalefold.shards.sealed_json import check_keys, read_sealed, sealed
from scalefold.shards.source_files import SourceFile
from scalefold.shards.writer import ShardFacts

_KEYS: Final = ("head", "rows", "template_hits", "structures", "chains", "hits")
"""Entries of a summary, the last four of an msa shard only."""
_OLD_HEADS: Final = 8


@dataclass(frozen=True)
class BucketHead:
    """What every summary states.

    Parameters
    ----------
    schema_version, config_hash
        With what it was packed (:func:`scalefold.config.identity.packing_hash`).
    settings
        What ``config_hash`` stands for, by dotted key; empty in summaries of earlier versions.
    shard
        The shard's size and hash.
    """

    family: str
    bucket: int
    schema_version: int
    config_hash: str
    shard: ShardFacts
    rejected: tuple[Rejected, ...]
    sources: tuple[SourceFile, ...]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """One row of a chain shard; ``seq_id`` is hexadecimal, ``release_date`` ISO.

    ``other_parents`` is that of :class:`~scalefold.raw.mmcif.Chain`, its residues as JSON's texts.
    Summaries of earlier versions have none.
    """

    chain_key: str
    row: int
    seq_id: str
    origin: str
    length: int
    resolution: float | None
    release_date: str | None
    cluster_id: str | None
    max_single_residue_fraction: float
    other_parents: dict[str, str] = field(default_factory=dict)

    @property
    def date(self) -> datetime.date | None:
        """The release date."""
        return None if self.release_date is None else datetime.date.fromisoformat(self.release_date)


@dataclass(frozen=True)
class ChainSummary:
    """A bucket's chain shard."""

    head: BucketHead
    rows: tuple[ChainFacts, ...]


@dataclass(frozen=True, slots=True)
class AlignmentFacts:
    """One row of an msa shard; ``chain_key`` is the chain whose files were read.

    ``num_other_parents`` and ``cut`` are those of :class:`~scalefold.raw.alignment.Alignment`.
    ``num_rows`` counts the query too; summaries of earlier versions have none.
    """

    row: int
    seq_id: str
    origin: str
    chain_key: str
    num_other_parents: int = 0
    cut: dict[str, int] = field(default_factory=dict)
    num_rows: int | None = None


@dataclass(frozen=True)
class MsaSummary:
    """A bucket's msa shard, and its shard of template hits.

    Parameters
    ----------
    template_hits
        How many template hits were left out, by reason.
    structures
        The chains that the alignments are of (:func:`queries_hash`).
    chains
        Keys of the chains whose alignments were looked for: all but those used only as templates.
    hits
        Size and hash of the shard of template hits.
    """

    head: BucketHead
    rows: tuple[AlignmentFacts, ...]
    template_hits: dict[str, int]
    structures: str
    chains: tuple[str, ...]
    hits: ShardFacts


def write_summary(folder: Path, summary: ChainSummary | MsaSummary) -> None:
    """Write a summary atomically to its place in the shard folder."""
    path = folder / summary_file(summary.head.family, summary.head.bucket)
    write_bytes(path, sealed(asdict(summary)))


def check_summary(folder: Path, shard: ShardFacts) -> None:
    """Check the summary beside a shard, which may be missing: nothing reads it any more.

    Raises
    ------
    InputError
        It is damaged, or of another shard.
    """
    path = (folder / shard.file).with_suffix(".json")
    fix = f"Delete it, or {pack_command(path.name)} writes it."
    with contextlib.suppress(FileNotFoundError):
        tree = read_sealed(path, fix)
        check_keys(path, tree, _KEYS, fix)
        head = tree.get("head")
        found = head.get("shard") if isinstance(head, dict) else None
        if found != asdict(shard):
            raise InputError(
                f"{path}: states {found} of its shard, the manifest {asdict(shard)}. {fix}"
            )


def queries_hash(summary: ChainSummary) -> str:
    """Twelve hex digits that stand for what alignments depend on of their bucket's structures."""
    known = [(f.chain_key, f.seq_id, f.origin, f.other_parents) for f in summary.rows]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]


def read_chain_summary(folder: Path, bucket: int, config: Config) -> ChainSummary:
    """Read a bucket's chain summary.

    Raises
    ------
    InputError
        It is missing, damaged, or was packed with other settings or by another version.
    """
    return _read(folder, "chain", bucket, config, _CHAINS)


def read_msa_summary(folder: Path, bucket: int, config: Config) -> MsaSummary:
    """Read a bucket's msa summary; raises as :func:`read_chain_summary`."""
    return _read(folder, "msa", bucket, config, _ALIGNMENTS)


def summary_heads(folder: Path) -> Iterator[BucketHead]:
    """Yield the heads of the latest summary and of some old ones: all would be a gigabyte.

    A finished folder does not need them, and may have later ones, where packing went no further.
    Damaged ones are left out.
    """
    paths = sorted([*folder.glob("chain-*.json"), *folder.glob("msa-*.json")], key=_time)
    for path in [*paths[-1:], *paths[:_OLD_HEADS]]:
        with contextlib.suppress(OSError, InputError, ValidationError):
            yield _HEAD.validate_python(read_sealed(path, fix="").get("head"))


def _time(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # another job may write it again
        return path.stat().st_mtime_ns
    return 0


def rows_left_out(folder: Path, bucket: int, row: int) -> dict[str, int]:
    """Return `AlignmentFacts.cut` of a row; none where a finished folder has no summaries."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        tree = json.loads((folder / summary_file("msa", bucket)).read_text("utf-8"))
        return dict(AlignmentFacts(**tree["rows"][row]).cut)
    return {}


_Summary = TypeVar("_Summary", ChainSummary, MsaSummary)
_HEAD: Final = TypeAdapter(BucketHead)
_CHAINS: Final = TypeAdapter(ChainSummary)
_ALIGNMENTS: Final = TypeAdapter(MsaSummary)


def _read(
    folder: Path, family: str, bucket: int, config: Config, kind: TypeAdapter[_Summary]
) -> _Summary:
    path = folder / summary_file(family, bucket)
    fix = f"{pack_command(path.name)} writes it."
    try:
        tree = read_sealed(path, fix)
        head = _HEAD.validate_python(tree.get("head"))
        if head.schema_version != FAMILY_VERSIONS[family]:
            raise InputError(
                f"{path}: schema version {head.schema_version}, this version of scalefold writes "
                f"{FAMILY_VERSIONS[family]}. {PACK_ALIGNMENTS_AGAIN}."
            )
        check_keys(path, tree, _KEYS, fix)
        summary = kind.validate_python(tree)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. {fix}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: damaged, {key}: {first['msg']}. {fix}") from error
    if head.config_hash not in packing_hashes(config):
        changed = changed_settings(head.settings, config)
        raise InputError(
            f"{path}: packed with other settings: {in_words(changed)}. Set them "
            f"back, pack everything into another folder, or pack again: {PACK_ALL_AGAIN}."
        )
    return summary


def changed_settings(packed_with: Mapping[str, Any], config: Config) -> dict[str, str]:
    """Say of each setting of packing that differs what it was then and is in the configuration.

    Returns
    -------
    dict
        Both values in words, by dotted key. All keys, if it is not known what they were.
    """
    now, former = packing_settings(config), former_packing_settings(config)
    if not packed_with.keys() & (now.keys() - former.keys()):
        now = former
    return {
        key: f"{packed_with.get(key, 'unknown')} there, {now.get(key, 'unknown')} now"
        for key in {**now, **packed_with}  # a version may have one that another has not
        if key not in now or key not in packed_with or packed_with[key] != now[key]
    }


def in_words(changed: Mapping[str, str]) -> str:
    """Join what `changed_settings` says."""
    return "; ".join(f"{key}: {values}" for key, values in changed.items())
