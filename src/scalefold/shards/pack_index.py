"""Last stage of packing: templates, index, table of rejected chains, manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import track

from scalefold.config.identity import packing_hash
from scalefold.config.schema import Config
from scalefold.errors import InputError, listed
from scalefold.fetch.fetched import check_raw
from scalefold.io.atomic import atomic_file
from scalefold.raw.chain_key import entry_of
from scalefold.raw.chains import ChainRow, read_chains, with_splits
from scalefold.raw.raw_folder import alignment_folder
from scalefold.raw.rejected import REJECTED_COLUMNS, Rejected, read_rejected
from scalefold.raw.table import table_text
from scalefold.shards.all_buckets import read_buckets
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_of, filled_buckets
from scalefold.shards.index_table import index_table
from scalefold.shards.locate_templates import TEMPLATE_OUTCOMES, locate_templates
from scalefold.shards.manifest import QUERY_ALONE, Manifest
from scalefold.shards.pack_alignments import STAYS
from scalefold.shards.repack_hint import PACK_ALL_AGAIN, pack_command
from scalefold.shards.schema import (
    INDEX_FILE,
    REJECTED_FILE,
    SCHEMA_VERSION,
    shard_file,
)
from scalefold.shards.summary import MsaSummary
from scalefold.shards.template_store import TemplateStore
from scalefold.shards.writer import ShardFacts, write_shard

STAGE: Final = "index"
_LIST: Final = pa.schema((name, pa.string()) for name in ChainRow._fields)


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
    rows = with_splits(read_chains(config.data.chains), config.data)
    config = with_bucket_count(config, out, rows)
    buckets = filled_buckets(rows, config.data.num_buckets)
    chains = pa.Table.from_pydict(
        {name: [getattr(row, name) for row in rows] for name in _LIST.names}, _LIST
    )
    del rows  # of the PDB 100 MB
    packed = read_buckets(out, buckets, config)
    bad = pa.array([rejection.chain_key for rejection in packed.set_aside], pa.string())
    _check_searched(chains, packed.searched, config)
    _check_table(chains, packed.chains, bad, config)

    index, keys = index_table(chains, packed.chains, packed.alignments, bad)
    unaligned = _without_alignment(keys, config)
    _check_still_absent(config, raw, unaligned)
    set_aside = [*packed.set_aside, *unaligned]
    missing = {rejection.chain_key for rejection in set_aside}
    rejected = _with_reasons_of_fetch(set_aside, raw)
    splits = Counter(index["split"].to_pylist())
    if not splits["train"] + splits["validation"]:
        reasons = listed([f"{r.chain_key}: {r.reason}" for r in rejected])
        raise InputError(
            f"{out}: no chain for training or validation is left of the {len(chains)} listed in "
            f"{config.data.chains}" + (f":{reasons}" if rejected else ": all are in split template")
        )
    store = TemplateStore(out, packed.chains)
    templates, template_hits = _locate(
        config, out, packed.alignments, index, store, console or Console(stderr=True)
    )
    with write_shard(out / INDEX_FILE, "index") as shard:
        for batch in index.to_batches():
            shard.add_batch(batch)
    table = _write_rejected(out / REJECTED_FILE, rejected)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        config_hash=packing_hash(config),
        source=packed.source,
        counts={
            **{f"chains, {split}": splits[split] for split in ("train", "validation", "template")},
            "chains set aside": len(missing),
            "chains set aside, kept as templates": sum(
                key in missing for key in index["chain_key"].to_pylist()
            ),
            "alignments": sum(len(summary.rows) for summary in packed.alignments),
            **{f"template hits, {o}": template_hits[o] for o in sorted(TEMPLATE_OUTCOMES)},
            **_query_alone(index, packed.alignments),
            **_notes(packed.alignments),
        },
        files=tuple(sorted([shard.facts, table, *packed.shards, *templates], key=lambda f: f.file)),
    )
    manifest.write(out)
    return manifest


def _query_alone(index: pa.Table, alignments: Sequence[MsaSummary]) -> dict[str, int]:
    """Count the chains whose alignment is their sequence alone; nothing where there is none."""
    alone = {
        (summary.head.bucket, facts.row)
        for summary in alignments
        for facts in summary.rows
        if facts.num_rows == 1
    }
    places = zip(index["msa_shard"].to_pylist(), index["msa_row"].to_pylist(), strict=True)
    number = sum(place in alone for place in places)
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
    alignments: Sequence[MsaSummary],
    index: pa.Table,
    store: TemplateStore,
    console: Console,
) -> tuple[list[ShardFacts], Counter[str]]:
    """Write the templates of all buckets; return their files, and counts of hits."""
    files: list[ShardFacts] = []
    counts: Counter[str] = Counter()
    for summary in track(
        alignments, description="templates, buckets", console=console, disable=not alignments
    ):
        users = index.filter(pc.equal(index["msa_shard"], summary.head.bucket))
        facts, outcomes = locate_templates(out, summary, users, store, config.shards)
        files.append(facts)
        counts.update(outcomes)
    return files, counts


def _without_alignment(keys: Sequence[str], config: Config) -> list[Rejected]:
    reason = (
        f"no alignment: none of {', '.join(config.data.alignments)} was found for this chain or "
        f"another of the same sequence. Fetch or search it, or correct data.alignments. {STAYS}"
    )
    return [Rejected(key, STAGE, reason) for key in keys]


def _check_table(chains: pa.Table, packed: pa.Table, bad: pa.Array, config: Config) -> None:
    """Check that buckets were packed with the lines that the table of chains has now."""
    keys, packed_keys = chains["chain_key"], packed["chain_key"]
    place = pc.index_in(keys, value_set=packed_keys)
    is_lost = pc.and_not(pc.is_null(place), pc.is_in(keys, value_set=bad))
    is_gone = pc.invert(pc.is_in(packed_keys, value_set=keys))
    then, now = packed["cluster_id"].take(place), chains["cluster_id"]
    is_moved = pc.and_(pc.is_valid(place), pc.not_equal(then.fill_null(""), now.fill_null("")))
    moved = pa.table([keys, now, then], ["key", "now", "then"]).filter(is_moved).to_pylist()
    faults = {
        **{m["key"]: f"is now of cluster {m['now']!r}, was packed as {m['then']!r}" for m in moved},
        **dict.fromkeys(keys.filter(is_lost).to_pylist(), "is new since its bucket was packed"),
        **dict.fromkeys(packed_keys.filter(is_gone).to_pylist(), "is no longer listed, but packed"),
    }
    if faults:
        key = min(faults)
        raise InputError(
            f"{config.data.chains}: chain {key} {faults[key]}. {_pack_again(key, config)}"
        )


def _check_searched(chains: pa.Table, searched: pa.ChunkedArray, config: Config) -> None:
    """Check that packing looked for the alignments of all chains but templates."""
    is_due = pc.and_not(
        pc.not_equal(chains["split"], "template"),
        pc.is_in(chains["chain_key"], value_set=searched),
    )
    for row in chains.filter(is_due).slice(0, 1).to_pylist():
        raise InputError(
            f"{config.data.chains}: {row['chain_key']} is in split {row['split']}, it was new or a "
            f"template when its bucket was packed. {_pack_again(row['chain_key'], config)}"
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


def _pack_again(chain_key: str, config: Config) -> str:
    """How a chain's bucket is fixed, for errors."""
    bucket = bucket_of(entry_of(chain_key), config.data.num_buckets)
    return f"Pack bucket {bucket} again; {PACK_ALL_AGAIN}."


def _with_reasons_of_fetch(set_aside: Sequence[Rejected], raw: Path) -> list[Rejected]:
    """Return one entry a chain, by chain key: packing says the fix, fetch what mirrors said."""
    said: dict[str, list[str]] = {}
    for table in sorted(raw.glob("rejected*.tsv")):
        for rejection in read_rejected(table):
            said.setdefault(rejection.chain_key, []).append(
                f". What {rejection.stage} met: {rejection.reason}"
            )
    return [
        replace(own, reason="".join((own.reason.removesuffix("."), *said[own.chain_key])))
        if own.chain_key in said
        else own
        for own in sorted(set_aside, key=lambda r: r.chain_key)
    ]


def _write_rejected(path: Path, rejected: Sequence[Rejected]) -> ShardFacts:
    with atomic_file(path) as file:
        file.write(table_text(REJECTED_COLUMNS, map(astuple, rejected)).encode())
    return ShardFacts(path.name, file.num_bytes, len(rejected), file.sha256)
