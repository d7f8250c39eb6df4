"""Last stage of packing: index, table of rejected chains, manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from scalefold.config.identity import packing_hash
from scalefold.config.schema import Config
from scalefold.errors import InputError, listed
from scalefold.raw.chains import (
    REJECTED_COLUMNS,
    ChainRow,
    Rejected,
    Split,
    read_chains,
    read_rejected,
    table_text,
)
from scalefold.raw.fetched import check_raw
from scalefold.shards.atomic import atomic_file
from scalefold.shards.buckets import bucket_of, filled_buckets
from scalefold.shards.manifest import Manifest, Snapshot
from scalefold.shards.pack_alignments import STAYS
from scalefold.shards.schema import INDEX_FILE, REJECTED_FILE, SCHEMA_VERSION, SCHEMAS
from scalefold.shards.summary import (
    ChainFacts,
    ChainSummary,
    MsaSummary,
    read_chain_summary,
    read_msa_summary,
)
from scalefold.shards.writer import ShardFacts, write_shard

STAGE: Final = "index"


@dataclass(frozen=True)
class _Place:
    """Where a row is."""

    bucket: int
    row: int


def pack_index(config: Config, raw: Path, out: Path) -> Manifest:
    """Complete a shard folder: ``index.arrow``, ``rejected.tsv`` and, last, ``manifest.json``.

    - A chain takes the alignment of its sequence in its own bucket, otherwise that of the first
      bucket that has one.
    - A chain that was set aside, or for whose sequence there is no alignment, is listed in
      ``rejected.tsv``; if its structure was packed it stays in the index as a ``template``.
    - The size of a cluster is the number of training chains in it. A chain without a cluster is
      one of its own.
    - Reasons that ``fetch`` has left in the raw folder are added to those of chains set aside.

    Parameters
    ----------
    config
        Sections ``data`` and ``shards``.
    raw
        Raw folder, for ``fetch``'s tables of rejected chains.
    out
        Shard folder with the shards and summaries of all buckets.

    Returns
    -------
    Manifest
        As written.

    Raises
    ------
    InputError
        The raw folder is missing; a bucket was not packed, or with other settings or another table
        of chains; or no chain for training or validation is left.
    """
    check_raw(raw)
    chains = read_chains(config.data.chains)
    config_hash = packing_hash(config)
    buckets = filled_buckets(chains, config.data.buckets)
    structures = [read_chain_summary(out, bucket, config_hash) for bucket in buckets]
    alignments = [read_msa_summary(out, bucket, config_hash) for bucket in buckets]
    heads = [s.head for s in structures] + [s.head for s in alignments]
    set_aside = [rejection for head in heads for rejection in head.rejected]

    rows, unaligned = _index_rows(chains, structures, alignments, set_aside, config)
    set_aside += unaligned
    missing = {rejection.chain_key for rejection in set_aside}
    rejected = _with_reasons_of_fetch(set_aside, raw)
    splits = Counter(row["split"] for row in rows)
    if not splits["train"] + splits["validation"]:
        reasons = listed([f"{r.chain_key}: {r.reason}" for r in rejected])
        raise InputError(
            f"{out}: no chain for training or validation is left of the {len(chains)} listed in "
            f"{config.data.chains}" + (f":{reasons}" if rejected else ": all are in split template")
        )
    index = pa.RecordBatch.from_pylist(rows, schema=SCHEMAS["index"])
    with write_shard(out / INDEX_FILE, "index") as shard:
        shard.add_batch(index)
    table = _write_rejected(out / REJECTED_FILE, rejected)
    template_hits: Counter[str] = Counter()
    for summary in alignments:
        template_hits.update(summary.template_hits)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        config_hash=config_hash,
        source=Snapshot.of([source for head in heads for source in head.sources]),
        counts={
            **{f"chains, {split}": splits[split] for split in ("train", "validation", "template")},
            "chains set aside": len(missing),
            "chains set aside, kept as templates": sum(row["chain_key"] in missing for row in rows),
            "alignments": sum(len(summary.rows) for summary in alignments),
            **{f"template hits, {outcome}": n for outcome, n in sorted(template_hits.items())},
        },
        files=tuple(
            sorted([shard.facts, table, *(head.shard for head in heads)], key=lambda f: f.file)
        ),
    )
    _check_sizes(out, manifest)
    manifest.write(out)
    return manifest


def _index_rows(
    chains: Sequence[ChainRow],
    structures: Sequence[ChainSummary],
    alignments: Sequence[MsaSummary],
    set_aside: Sequence[Rejected],
    config: Config,
) -> tuple[list[dict[str, Any]], list[Rejected]]:
    """Return the rows of the index, sorted by chain key, and the chains without an alignment."""
    places = {
        facts.chain_key: (summary.head.bucket, facts)
        for summary in structures
        for facts in summary.rows
    }
    msa_places: dict[tuple[str, str], dict[int, _Place]] = {}
    for summary in alignments:
        bucket = summary.head.bucket
        for alignment in summary.rows:
            by_bucket = msa_places.setdefault((alignment.seq_id, alignment.origin), {})
            by_bucket[bucket] = _Place(bucket, alignment.row)

    bad = {rejection.chain_key for rejection in set_aside}
    rejected: list[Rejected] = []
    found: list[tuple[ChainRow, Split, int, ChainFacts, _Place | None]] = []
    for row in sorted(chains, key=lambda row: row.chain_key):
        if row.chain_key not in places:
            if row.chain_key not in bad:
                bucket = bucket_of(row.entry_id, config.data.buckets)
                raise InputError(
                    f"{config.data.chains}: chain {row.chain_key} is new since its bucket was "
                    f"packed. Pack bucket {bucket} again."
                )
            continue
        bucket, facts = places[row.chain_key]
        if facts.cluster_id != row.cluster_id:
            raise InputError(
                f"{config.data.chains}: cluster of {row.chain_key} is {row.cluster_id!r}, it was "
                f"packed as {facts.cluster_id!r}. Pack bucket {bucket} again."
            )
        by_bucket = msa_places.get((facts.seq_id, facts.origin), {})
        place = by_bucket.get(bucket) or next((by_bucket[b] for b in sorted(by_bucket)), None)
        if row.split == "template" or row.chain_key in bad:
            place = None
        elif place is None:
            reason = (
                f"no alignment: none of {', '.join(config.data.alignments)} was found for this "
                "chain or another of the same sequence. Fetch or search it, or correct "
                f"data.alignments. {STAYS}"
            )
            rejected.append(Rejected(row.chain_key, STAGE, reason))
        found.append((row, "template" if place is None else row.split, bucket, facts, place))

    sizes = Counter(row.cluster_id for row, split, *_ in found if split == "train")
    rows = [
        {
            "chain_key": row.chain_key,
            "split": split,
            "origin": facts.origin,
            "seq_id": bytes.fromhex(facts.seq_id),
            "length": facts.length,
            "chain_shard": bucket,
            "chain_row": facts.row,
            "msa_shard": None if place is None else place.bucket,
            "msa_row": None if place is None else place.row,
            "release_date": facts.date,
            "resolution": facts.resolution,
            "cluster_id": row.cluster_id,
            "cluster_size": (
                int(split == "train") if row.cluster_id is None else sizes[row.cluster_id]
            ),
            "max_single_residue_fraction": facts.max_single_residue_fraction,
        }
        for row, split, bucket, facts, place in found
    ]
    return rows, rejected


def _with_reasons_of_fetch(set_aside: Sequence[Rejected], raw: Path) -> list[Rejected]:
    """Return one entry a chain, by chain key: packing says the mend, fetch what mirrors said."""
    said: dict[str, list[str]] = {}
    for table in sorted(raw.glob("rejected*.tsv")):
        for rejection in read_rejected(table):
            said.setdefault(rejection.chain_key, []).append(
                f" What {rejection.stage} met: {rejection.reason}"
            )
    return [
        replace(own, reason=own.reason + "".join(said.get(own.chain_key, ())))
        for own in sorted(set_aside, key=lambda r: r.chain_key)
    ]


def _write_rejected(path: Path, rejected: Sequence[Rejected]) -> ShardFacts:
    with atomic_file(path) as file:
        file.write(table_text(REJECTED_COLUMNS, map(astuple, rejected)).encode())
    return ShardFacts(path.name, file.num_bytes, len(rejected), file.sha256)


def _check_sizes(out: Path, manifest: Manifest) -> None:
    """Check that the shards are still those of the summaries (contents: ``scalefold verify``)."""
    for facts in manifest.files:
        path = out / facts.file
        size = path.stat().st_size if path.is_file() else None
        if size != facts.bytes:
            raise InputError(
                f"{path}: {'missing' if size is None else f'{size} bytes'}, its bucket was packed "
                f"with {facts.bytes} bytes. Pack the bucket again."
            )
