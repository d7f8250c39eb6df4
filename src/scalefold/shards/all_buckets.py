"""The summaries of all buckets, read one by one to what the index needs of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.raw.rejected import Rejected
from scalefold.shards.chain_table import chain_columns, chain_table
from scalefold.shards.repack_hint import pack_command
from scalefold.shards.source_files import RawSnapshot, source_columns
from scalefold.shards.summary import (
    ChainSummary,
    MsaSummary,
    queries_hash,
    read_chain_summary,
    read_msa_summary,
)
from scalefold.shards.writer import ShardFacts


@dataclass(frozen=True)
class PackedBuckets:
    """What all buckets hold.

    Parameters
    ----------
    chains
        See :func:`~.chain_table.chain_table`.
    alignments
        Summaries of the msa shards, without the names of their chains and raw files.
    searched
        Keys of the chains whose alignments were looked for.
    set_aside
        Chains that packing has set aside, and why.
    shards
        Sizes and hashes of all shards of chains, alignments and template hits.
    source
        The raw files that were packed.
    """

    chains: pa.Table
    alignments: list[MsaSummary]
    searched: pa.ChunkedArray
    set_aside: list[Rejected]
    shards: list[ShardFacts]
    source: RawSnapshot


def read_buckets(folder: Path, buckets: Iterable[int], config: Config) -> PackedBuckets:
    """Read the summaries of some buckets; of each, only what is needed stays in memory.

    Raises
    ------
    InputError
        One is missing, damaged, or was packed with other settings; a shard does not have its size;
        or alignments are of other chains than are packed now.
    """
    structures: list[pa.RecordBatch] = []
    searched: list[pa.Array] = []
    sources: list[pa.RecordBatch] = []
    kept: list[MsaSummary] = []
    set_aside: list[Rejected] = []
    shards: list[ShardFacts] = []
    for bucket in buckets:
        chains = read_chain_summary(folder, bucket, config)
        alignments = read_msa_summary(folder, bucket, config)
        _check_one_run(folder, chains, alignments)
        structures.append(chain_columns(chains))
        searched.append(pa.array(alignments.chains, pa.string()))
        shards.append(alignments.hits)
        for head in (chains.head, alignments.head):
            shards.append(head.shard)
            set_aside += head.rejected
            sources.append(source_columns(head.sources))
        kept.append(replace(alignments, chains=(), head=replace(alignments.head, sources=())))
    _check_sizes(folder, shards)
    return PackedBuckets(
        chain_table(structures),
        kept,
        pa.chunked_array(searched, pa.string()),
        set_aside,
        shards,
        RawSnapshot.of(sources),
    )


def _check_one_run(folder: Path, chains: ChainSummary, alignments: MsaSummary) -> None:
    """Check that alignments are of the chains that are in their bucket's chain shard now."""
    expected = queries_hash(chains)
    if alignments.structures != expected:
        file = alignments.head.shard.file
        raise InputError(
            f"{folder / file}: its alignments are of other chains or sequences "
            f"({alignments.structures}) than {chains.head.shard.file} has now ({expected}). "
            f"Pack them again with {pack_command(file)}."
        )


def _check_sizes(folder: Path, shards: Sequence[ShardFacts]) -> None:
    """Check that the shards are still those of the summaries (contents: ``scalefold verify``)."""
    for facts in shards:
        path = folder / facts.file
        size = path.stat().st_size if path.is_file() else None
        if size != facts.bytes:
            raise InputError(
                f"{path}: {'missing' if size is None else f'{size} bytes'}, its bucket was packed "
                f"with {facts.bytes} bytes. Pack the bucket again."
            )
