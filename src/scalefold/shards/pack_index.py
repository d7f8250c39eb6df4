"""Last stage of packing: templates, index, table of rejected chains, manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Final, get_args

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
from scalefold.raw.chains import Split, read_chains, with_splits
from scalefold.raw.raw_folder import alignment_folder
from scalefold.raw.rejected import REJECTED_COLUMNS, Rejected, read_rejected
from scalefold.raw.table import table_text
from scalefold.shards.all_buckets import read_buckets, read_sources
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_of, filled_buckets
from scalefold.shards.chain_list import list_table
from scalefold.shards.index_table import as_one_integer, index_table
from scalefold.shards.locate_templates import TEMPLATE_OUTCOMES, locate_templates
from scalefold.shards.manifest import QUERY_ALONE, Manifest
from scalefold.shards.pack_alignments import STAYS
from scalefold.shards.repack_hint import pack_command
from scalefold.shards.schema import INDEX_FILE, REJECTED_FILE, SCHEMA_VERSION, shard_file
from scalefold.shards.template_store import TemplateStore
from scalefold.shards.writer import ShardFacts, write_shard

STAGE: Final = "index"


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
    raw
        Raw folder, for ``fetch``'s tables of rejected chains.
    out
        Shard folder with the shards and summaries of all buckets.

    Raises
    ------
    InputError
        The raw folder is missing; a bucket was not packed, or with other settings, another table of
        chains or other structures; or no chain for training or validation is left.
    """
    check_raw(raw)
    pa.array([])  # imports pandas; among the objects of `rows`, it would keep their memory
    rows = with_splits(read_chains(config.data.chains), config.data)
    config = with_bucket_count(config, out, rows)
    buckets = filled_buckets(rows, config.data.num_buckets)
    num_listed, chains = len(rows), list_table(rows, config.data.num_buckets)
    del rows  # of the PDB 100 MB
    source = read_sources(out, buckets, config)  # first, since they are as large as all the rest
    packed = read_buckets(out, buckets, chains, config)
    del chains

    bad = pa.array([rejection.chain_key for rejection in packed.set_aside], pa.string())
    index, keys = index_table(packed.chains, packed.alignments, bad)
    unaligned = _without_alignment(keys, config)
    _check_still_absent(config, raw, unaligned)
    set_aside = [*packed.set_aside, *unaligned]
    missing = list({rejection.chain_key for rejection in set_aside})
    rejected = _with_reasons_of_fetch(set_aside, raw)
    splits = {s: _number(pc.equal(index["split"], s)) for s in get_args(Split)}
    if not splits["train"] + splits["validation"]:
        reasons = listed([f"{r.chain_key}: {r.reason}" for r in rejected])
        raise InputError(
            f"{out}: no chain for training or validation is left of the {num_listed} listed in "
            f"{config.data.chains}" + (f":{reasons}" if rejected else ": all are in split template")
        )
    store = TemplateStore(out, index)
    pa.default_memory_pool().release_unused()  # the store's sequences are not in it
    templates, template_hits = _locate(
        config, out, buckets, packed.alignments, index, store, console or Console(stderr=True)
    )
    template_hits.update(packed.left_out)
    with write_shard(out / INDEX_FILE, "index") as shard:
        for batch in index.to_batches():
            shard.add_batch(batch)
    table = _write_rejected(out / REJECTED_FILE, rejected)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        config_hash=packing_hash(config),
        source=source,
        counts={
            **{f"chains, {split}": number for split, number in splits.items()},
            "chains set aside": len(missing),
            "chains set aside, kept as templates": _number(
                pc.is_in(index["chain_key"], value_set=pa.array(missing, pa.string()))
            ),
            "alignments": len(packed.alignments),
            **{f"template hits, {o}": template_hits[o] for o in sorted(TEMPLATE_OUTCOMES)},
            **_query_alone(index, packed.alignments),
            **dict(sorted(packed.notes.items())),
        },
        files=tuple(sorted([shard.facts, table, *packed.shards, *templates], key=lambda f: f.file)),
    )
    manifest.write(out)
    return manifest


def _query_alone(index: pa.Table, alignments: pa.Table) -> dict[str, int]:
    """Count the chains whose alignment is their sequence alone; nothing where there is none."""

    def places(table: pa.Table) -> pa.ChunkedArray:
        return as_one_integer(table["msa_shard"], table["msa_row"])

    alone = places(alignments.filter(alignments["is_alone"]))
    number = _number(pc.is_in(places(index), value_set=alone))
    return {QUERY_ALONE: number} if number else {}


def _number(chosen: pa.ChunkedArray) -> int:
    number: int = pc.sum(chosen, min_count=0).as_py()
    return number


def _locate(
    config: Config,
    out: Path,
    buckets: Sequence[int],
    alignments: pa.Table,
    index: pa.Table,
    store: TemplateStore,
    console: Console,
) -> tuple[list[ShardFacts], Counter[str]]:
    """Write the templates of all buckets; return their files, and counts of hits."""
    users = index.select(["msa_shard", "msa_row", "chain_key", "release_date"])
    files: list[ShardFacts] = []
    counts: Counter[str] = Counter()
    for bucket in track(buckets, description="templates, buckets", console=console):
        rows, users_of = (t.filter(pc.equal(t["msa_shard"], bucket)) for t in (alignments, users))
        facts, outcomes = locate_templates(out, bucket, rows, users_of, store, config.shards)
        files.append(facts)
        counts.update(outcomes)
    return files, counts


def _without_alignment(keys: Sequence[str], config: Config) -> list[Rejected]:
    reason = (
        f"no alignment: none of {', '.join(config.data.alignments)} was found for this chain or "
        f"another of the same sequence. Fetch or search it, or correct data.alignments. {STAYS}"
    )
    return [Rejected(key, STAGE, reason) for key in keys]


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


def _with_reasons_of_fetch(set_aside: Sequence[Rejected], raw: Path) -> list[Rejected]:
    """Return one entry a chain, by chain key: first what mirrors said, then what packing found."""
    said: dict[str, list[str]] = {}
    for table in sorted(raw.glob("rejected*.tsv")):
        for rejection in read_rejected(table):
            said.setdefault(rejection.chain_key, []).append(
                f"{rejection.stage}: {rejection.reason.removesuffix('.')}. "
            )
    return [
        replace(own, reason="".join((*said[own.chain_key], f"pack: {own.reason}")))
        if own.chain_key in said
        else own
        for own in sorted(set_aside, key=lambda r: r.chain_key)
    ]


def _write_rejected(path: Path, rejected: Sequence[Rejected]) -> ShardFacts:
    with atomic_file(path) as file:
        file.write(table_text(REJECTED_COLUMNS, map(astuple, rejected)).encode())
    return ShardFacts(path.name, file.num_bytes, len(rejected), file.sha256)
