"""Last stage of packing: templates, index, table of rejected chains, manifest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rich.console import Console
from rich.progress import track

from scalefold.config.identity import packing_hash
from scalefold.config.schema import Config
from scalefold.errors import InputError, listed
from scalefold.io.atomic import atomic_file
from scalefold.raw.chains import (
    REJECTED_COLUMNS,
    ChainRow,
    Rejected,
    Split,
    alignment_folder,
    entry_of,
    read_chains,
    read_rejected,
    table_text,
)
from scalefold.raw.fetched import check_raw
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_of, filled_buckets
from scalefold.shards.locate_templates import TEMPLATE_OUTCOMES, locate_templates
from scalefold.shards.manifest import QUERY_ALONE, Manifest, Snapshot
from scalefold.shards.pack_alignments import STAYS
from scalefold.shards.repack_hint import PACK_ALL_AGAIN, pack_command
from scalefold.shards.schema import (
    INDEX_FILE,
    REJECTED_FILE,
    SCHEMA_VERSION,
    SCHEMAS,
    shard_file,
)
from scalefold.shards.summary import (
    ChainFacts,
    ChainSummary,
    MsaSummary,
    queries_hash,
    read_chain_summary,
    read_msa_summary,
)
from scalefold.shards.template_store import TemplateStore
from scalefold.shards.writer import ShardFacts, write_shard

STAGE: Final = "index"


@dataclass(frozen=True)
class _Place:
    """Where a row is."""

    bucket: int
    row: int


@dataclass(frozen=True)
class _Entry:
    """A chain of the index: where its structure and, if it has one, its alignment are."""

    split: Split
    facts: ChainFacts
    chain: _Place
    alignment: _Place | None


def pack_index(config: Config, raw: Path, out: Path, console: Console | None = None) -> Manifest:
    """Complete a shard folder: templates, index, rejected chains and, last, ``manifest.json``.

    - A chain takes the alignment of its sequence in its own bucket, otherwise that of the first
      bucket that has one.
    - A chain that was set aside, or for whose sequence there is no alignment, is listed in
      ``rejected.tsv``; if its structure was packed it stays in the index as a ``template``.
    - The size of a cluster is the number of training chains in it. A chain without a cluster is
      one of its own.
    - Template hits of all alignments are located in the packed structures
      (:func:`~.locate_templates.locate_templates`).
    - Reasons that ``fetch`` has left in the raw folder are added to those of chains set aside.

    Parameters
    ----------
    config
        Sections ``data`` and ``shards``.
    raw
        Raw folder, for ``fetch``'s tables of rejected chains.
    out
        Shard folder with the shards and summaries of all buckets.
    console
        Where progress is shown; default: standard error.

    Returns
    -------
    Manifest
        As written.

    Raises
    ------
    InputError
        The raw folder is missing; a bucket was not packed, or with other settings, another table of
        chains or other structures; or no chain for training or validation is left.
    """
    check_raw(raw)
    chains = read_chains(config.data.chains)
    config = with_bucket_count(config, out, chains)
    buckets = filled_buckets(chains, config.data.num_buckets)
    structures = [read_chain_summary(out, bucket, config) for bucket in buckets]
    alignments = [read_msa_summary(out, bucket, config) for bucket in buckets]
    _check_one_run(out, structures, alignments)
    _check_searched(chains, alignments, config)
    heads = [s.head for s in structures] + [s.head for s in alignments]
    shards = [*(head.shard for head in heads), *(summary.hits for summary in alignments)]
    _check_sizes(out, shards)
    set_aside = [rejection for head in heads for rejection in head.rejected]

    entries, unaligned = _entries(chains, structures, alignments, set_aside, config)
    _check_still_absent(config, raw, unaligned)
    rows = _index_rows(entries)
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
    templates, template_hits = _locate(
        config, out, structures, alignments, entries, console or Console(stderr=True)
    )
    index = pa.RecordBatch.from_pylist(rows, schema=SCHEMAS["index"])
    with write_shard(out / INDEX_FILE, "index") as shard:
        shard.add_batch(index)
    table = _write_rejected(out / REJECTED_FILE, rejected)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        config_hash=packing_hash(config),
        source=Snapshot.of([source for head in heads for source in head.sources]),
        counts={
            **{f"chains, {split}": splits[split] for split in ("train", "validation", "template")},
            "chains set aside": len(missing),
            "chains set aside, kept as templates": sum(row["chain_key"] in missing for row in rows),
            "alignments": sum(len(summary.rows) for summary in alignments),
            **{f"template hits, {o}": template_hits[o] for o in sorted(TEMPLATE_OUTCOMES)},
            **_query_alone(rows, alignments),
            **_notes(alignments),
        },
        files=tuple(sorted([shard.facts, table, *shards, *templates], key=lambda f: f.file)),
    )
    manifest.write(out)
    return manifest


def _query_alone(
    rows: Sequence[Mapping[str, Any]], alignments: Sequence[MsaSummary]
) -> dict[str, int]:
    """Count the chains whose alignment is their sequence alone; nothing where there is none."""
    alone = {
        (summary.head.bucket, facts.row)
        for summary in alignments
        for facts in summary.rows
        if facts.num_rows == 1
    }
    number = sum((row["msa_shard"], row["msa_row"]) in alone for row in rows)
    return {QUERY_ALONE: number} if number else {}


def _notes(alignments: Sequence[MsaSummary]) -> dict[str, int]:
    """Count what is unusual in alignments; what there is none of is left out."""
    counts: Counter[str] = Counter()
    for facts in (facts for summary in alignments for facts in summary.rows):
        if facts.num_other_parents:
            counts["alignments with an earlier letter of a modified residue"] += 1
        for source, number in facts.cut.items():
            counts[f"alignment rows left out, {source}"] += number
    return dict(sorted(counts.items()))


def _locate(
    config: Config,
    out: Path,
    structures: Sequence[ChainSummary],
    alignments: Sequence[MsaSummary],
    entries: Sequence[_Entry],
    console: Console,
) -> tuple[list[ShardFacts], Counter[str]]:
    """Write the templates of all buckets; return their files, and what became of the hits."""
    users: dict[int, dict[int, list[ChainFacts]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        if entry.alignment is not None:
            users[entry.alignment.bucket][entry.alignment.row].append(entry.facts)
    store = TemplateStore(out, structures)
    files: list[ShardFacts] = []
    counts: Counter[str] = Counter()
    for summary in track(
        alignments, description="templates, buckets", console=console, disable=not alignments
    ):
        facts, outcomes = locate_templates(
            out, summary, users[summary.head.bucket], store, config.shards
        )
        files.append(facts)
        counts.update(outcomes)
    return files, counts


def _check_one_run(
    out: Path, structures: Sequence[ChainSummary], alignments: Sequence[MsaSummary]
) -> None:
    """Check that alignments are of the chains that are in their bucket's chain shard now."""
    for of_chains, summary in zip(structures, alignments, strict=True):
        expected = queries_hash(of_chains)
        if summary.structures != expected:
            file = summary.head.shard.file
            raise InputError(
                f"{out / file}: its alignments are of other chains or sequences "
                f"({summary.structures}) than {of_chains.head.shard.file} has now ({expected}). "
                f"Pack them again with {pack_command(file)}."
            )


def _entries(
    chains: Sequence[ChainRow],
    structures: Sequence[ChainSummary],
    alignments: Sequence[MsaSummary],
    set_aside: Sequence[Rejected],
    config: Config,
) -> tuple[list[_Entry], list[Rejected]]:
    """Return the chains of the index, sorted by key, and those without an alignment."""
    packed = {
        facts.chain_key: (_Place(summary.head.bucket, facts.row), facts)
        for summary in structures
        for facts in summary.rows
    }
    bad = {rejection.chain_key for rejection in set_aside}
    _check_table(chains, packed, bad, config)
    of_sequence = _alignments_by_sequence(alignments)

    rejected: list[Rejected] = []
    found: list[_Entry] = []
    for row in sorted(chains, key=lambda row: row.chain_key):
        if row.chain_key not in packed:
            continue
        chain, facts = packed[row.chain_key]
        alignment = None
        if row.split != "template" and row.chain_key not in bad:
            by_bucket = of_sequence.get((facts.seq_id, facts.origin), {})
            alignment = by_bucket.get(chain.bucket) or next(iter(by_bucket.values()), None)
            if alignment is None:
                reason = (
                    f"no alignment: none of {', '.join(config.data.alignments)} was found for this "
                    "chain or another of the same sequence. Fetch or search it, or correct "
                    f"data.alignments. {STAYS}"
                )
                rejected.append(Rejected(row.chain_key, STAGE, reason))
        split: Split = "template" if alignment is None else row.split
        found.append(_Entry(split, facts, chain, alignment))
    return found, rejected


def _index_rows(entries: Sequence[_Entry]) -> list[dict[str, Any]]:
    sizes = Counter(entry.facts.cluster_id for entry in entries if entry.split == "train")
    return [_index_row(entry, sizes) for entry in entries]


def _check_table(
    chains: Sequence[ChainRow],
    packed: Mapping[str, tuple[_Place, ChainFacts]],
    bad: Collection[str],
    config: Config,
) -> None:
    """Check that buckets were packed with the lines that the table of chains has now."""
    clusters = {row.chain_key: row.cluster_id for row in chains}
    for key in sorted(packed.keys() | clusters.keys() - bad):
        if key not in packed:
            fault = f"chain {key} is new since its bucket was packed"
        elif key not in clusters:
            fault = f"chain {key} is no longer listed, but packed"
        elif clusters[key] != packed[key][1].cluster_id:
            then = packed[key][1].cluster_id
            fault = f"cluster of {key} is {clusters[key]!r}, it was packed as {then!r}"
        else:
            continue
        bucket = bucket_of(entry_of(key), config.data.num_buckets)
        raise InputError(f"{config.data.chains}: {fault}. {_pack_again(bucket)}")


def _check_searched(
    chains: Sequence[ChainRow], alignments: Sequence[MsaSummary], config: Config
) -> None:
    """Check that alignments were looked for of the chains that are no mere templates now."""
    searched = {summary.head.bucket: frozenset(summary.chains) for summary in alignments}
    for row in chains:
        bucket = bucket_of(entry_of(row.chain_key), config.data.num_buckets)
        if row.split != "template" and row.chain_key not in searched[bucket]:
            raise InputError(
                f"{config.data.chains}: {row.chain_key} is in split {row.split}, it was new or a "
                f"template when its bucket was packed. {_pack_again(bucket)}"
            )


def _check_still_absent(config: Config, raw: Path, unaligned: Sequence[Rejected]) -> None:
    """Check that chains without an alignment have none: a search may have brought one since."""
    for rejection in unaligned:
        key = rejection.chain_key
        folder = alignment_folder(raw, key) / "a3m"
        if any((folder / f"{name}.a3m").is_file() for name in config.data.alignments):
            file = shard_file("msa", bucket_of(entry_of(key), config.data.num_buckets))
            raise InputError(
                f"{folder}: alignments of {key} have come since its bucket was packed. Pack it "
                f"again: in the workflow delete {file} and give the same snakemake command, by "
                f"hand {pack_command(file)}"
            )


def _pack_again(bucket: int) -> str:
    """How a bucket is mended, for errors."""
    return f"Pack bucket {bucket} again; {PACK_ALL_AGAIN}."


def _alignments_by_sequence(
    alignments: Sequence[MsaSummary],
) -> dict[tuple[str, str], dict[int, _Place]]:
    """Return (sequence, origin) -> bucket, rising -> row of its alignment."""
    places: dict[tuple[str, str], dict[int, _Place]] = {}
    for summary in sorted(alignments, key=lambda summary: summary.head.bucket):
        bucket = summary.head.bucket
        for facts in summary.rows:
            by_bucket = places.setdefault((facts.seq_id, facts.origin), {})
            by_bucket[bucket] = _Place(bucket, facts.row)
    return places


def _index_row(entry: _Entry, cluster_sizes: Mapping[str | None, int]) -> dict[str, Any]:
    facts, alignment = entry.facts, entry.alignment
    return {
        "chain_key": facts.chain_key,
        "split": entry.split,
        "origin": facts.origin,
        "seq_id": bytes.fromhex(facts.seq_id),
        "length": facts.length,
        "chain_shard": entry.chain.bucket,
        "chain_row": entry.chain.row,
        "msa_shard": None if alignment is None else alignment.bucket,
        "msa_row": None if alignment is None else alignment.row,
        "release_date": facts.date,
        "resolution": facts.resolution,
        "cluster_id": facts.cluster_id,
        "cluster_size": (
            int(entry.split == "train")
            if facts.cluster_id is None
            else cluster_sizes[facts.cluster_id]
        ),
        "max_single_residue_fraction": facts.max_single_residue_fraction,
    }


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


def _check_sizes(out: Path, shards: Sequence[ShardFacts]) -> None:
    """Check that the shards are still those of the summaries (contents: ``scalefold verify``)."""
    for facts in shards:
        path = out / facts.file
        size = path.stat().st_size if path.is_file() else None
        if size != facts.bytes:
            raise InputError(
                f"{path}: {'missing' if size is None else f'{size} bytes'}, its bucket was packed "
                f"with {facts.bytes} bytes. Pack the bucket again."
            )
