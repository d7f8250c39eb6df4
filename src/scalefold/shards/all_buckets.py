"""The summaries of all buckets, read one by one to what the index needs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.raw.rejected import Rejected
from scalefold.shards.chain_list import check_searched, check_table
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

_ALIGNMENTS: Final = pa.schema(
    [
        ("msa_shard", pa.int32()),
        ("msa_row", pa.int32()),
        ("seq_id", pa.binary(32)),
        ("origin", pa.string()),
        ("chain_key", pa.string()),  # the chain whose files were read
        ("is_alone", pa.bool_()),  # the query is its only row
    ]
)
"""Columns of packed alignments: as objects, those of the PDB would take 60 MB."""


@dataclass(frozen=True)
class PackedBuckets:
    """What all buckets hold.

    Parameters
    ----------
    chains
        See :func:`~.chain_table.chain_table`; with the split of each chain.
    alignments
        See :func:`alignment_columns`, by bucket and row.
    set_aside
        Chains that packing has set aside, and why.
    shards
        Sizes and hashes of all shards of chains, alignments and template hits.
    left_out
        How many template hits were left out, by reason.
    notes
        How many alignments and rows are unusual, in words.
    """

    chains: pa.Table
    alignments: pa.Table
    set_aside: list[Rejected]
    shards: list[ShardFacts]
    left_out: Counter[str]
    notes: Counter[str]


def read_sources(folder: Path, buckets: Sequence[int], config: Config) -> RawSnapshot:
    """Return the raw files of some buckets; raises as `read_buckets`."""
    return RawSnapshot.of(
        source_columns(read(folder, bucket, config).head.sources)
        for bucket in buckets
        for read in (read_chain_summary, read_msa_summary)
    )


def read_buckets(
    folder: Path, buckets: Sequence[int], listed: pa.Table, config: Config
) -> PackedBuckets:
    """Read the summaries of some buckets; of each, only what is needed stays in memory.

    Parameters
    ----------
    listed
        See :func:`~.chain_list.list_table`.

    Raises
    ------
    InputError
        One is missing, damaged, or was packed with other settings or another list of chains; a
        shard does not have its size; or alignments are of other chains than are packed now.
    """
    alignments: list[pa.RecordBatch] = []
    set_aside: list[Rejected] = []
    shards: list[ShardFacts] = []
    left_out: Counter[str] = Counter()
    notes: Counter[str] = Counter()

    def chains_of_each() -> Iterator[pa.RecordBatch]:
        for bucket in buckets:
            chains = read_chain_summary(folder, bucket, config)
            summary = read_msa_summary(folder, bucket, config)
            _check_one_run(folder, chains, summary)
            alignments.append(alignment_columns(summary))
            set_aside.extend((*chains.head.rejected, *summary.head.rejected))
            shards.extend((summary.hits, chains.head.shard, summary.head.shard))
            left_out.update(summary.template_hits)
            notes.update(_notes(summary))
            yield _with_splits(
                chains, summary, listed.filter(pc.equal(listed["bucket"], bucket)), config
            )

    chains = chain_table(chains_of_each())
    _check_sizes(folder, shards)
    return PackedBuckets(
        chains,
        pa.Table.from_batches(alignments, _ALIGNMENTS).combine_chunks(),
        set_aside,
        shards,
        left_out,
        notes,
    )


def alignment_columns(summary: MsaSummary) -> pa.RecordBatch:
    """Return the alignments of a bucket, by row."""
    rows = sorted(summary.rows, key=lambda facts: facts.row)
    columns = {
        "msa_shard": [summary.head.bucket] * len(rows),
        "msa_row": [facts.row for facts in rows],
        "seq_id": [bytes.fromhex(facts.seq_id) for facts in rows],
        "origin": [facts.origin for facts in rows],
        "chain_key": [facts.chain_key for facts in rows],
        "is_alone": [facts.num_rows == 1 for facts in rows],
    }
    return pa.RecordBatch.from_pydict(columns, _ALIGNMENTS)


def _with_splits(
    chains: ChainSummary, alignments: MsaSummary, listed: pa.Table, config: Config
) -> pa.RecordBatch:
    """Return the chains of a bucket with their splits, after a check that they are as listed."""
    packed = chain_columns(chains)
    bad = [rejection.chain_key for rejection in (*chains.head.rejected, *alignments.head.rejected)]
    check_searched(listed, alignments.chains, config)
    check_table(listed, packed, bad, config)
    place = pc.index_in(packed["chain_key"], value_set=listed["chain_key"])
    return packed.append_column("split", listed["split"].combine_chunks().take(place))


def _notes(summary: MsaSummary) -> Counter[str]:
    """Count what is unusual in alignments; what there is none of is left out."""
    counts: Counter[str] = Counter()
    for facts in summary.rows:
        if facts.num_other_parents:
            counts["alignments with an earlier letter of a modified residue"] += 1
        for source, number in facts.cut.items():
            counts[f"alignment rows left out, {source}"] += number
    return counts


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
