"""The rows of the index: where each chain's structure and alignment are, and its cluster's size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scalefold.shards.schema import SCHEMAS
from scalefold.shards.summary import MsaSummary

_AT_A_TIME: Final = 10_000
"""Rows that are Python's objects at the same time."""


def index_table(
    chains: pa.Table, packed: pa.Table, alignments: Sequence[MsaSummary], bad: pa.Array
) -> tuple[pa.Table, list[str]]:
    """Return the index, sorted by chain key, and the keys of the chains without an alignment.

    Parameters
    ----------
    chains
        The list of chains, with the columns of `ChainRow`.
    packed
        See :func:`~.chain_table.chain_table`; all of them are listed.
    alignments
        Of all buckets.
    bad
        Keys of the chains that packing has set aside.
    """
    places = pc.index_in(packed["chain_key"], value_set=chains["chain_key"])
    split = chains["split"].take(places)
    is_sample = pc.and_(
        pc.not_equal(split, "template"), pc.invert(pc.is_in(packed["chain_key"], value_set=bad))
    )
    msa_shard, msa_row = _alignment_of_each(packed, is_sample, alignments)
    is_aligned = pc.is_valid(msa_shard)
    split = pc.if_else(is_aligned, split, "template")
    columns = {
        "split": split,
        "msa_shard": msa_shard,
        "msa_row": msa_row,
        "cluster_size": _cluster_sizes(packed["cluster_id"], pc.equal(split, "train")),
    }
    schema = SCHEMAS["index"]
    index = pa.table({**{name: packed[name] for name in packed.column_names}, **columns})
    unaligned = packed["chain_key"].filter(pc.and_not(is_sample, is_aligned))
    return index.select(schema.names).cast(schema).combine_chunks(), unaligned.to_pylist()


def _alignment_of_each(
    packed: pa.Table, is_sample: pa.ChunkedArray, alignments: Sequence[MsaSummary]
) -> tuple[pa.Array, pa.Array]:
    """Return bucket and row of the alignment of each chain, null where it has none.

    It is that of the chain's own bucket, otherwise that of the first bucket that has one.
    """
    rows: dict[tuple[bytes, str], dict[int, int]] = {}  # sequence, origin -> bucket -> row
    for summary in sorted(alignments, key=lambda summary: summary.head.bucket):
        for facts in summary.rows:
            identity = bytes.fromhex(facts.seq_id), facts.origin
            rows.setdefault(identity, {})[summary.head.bucket] = facts.row
    columns = (packed["seq_id"], packed["origin"], packed["chain_shard"], is_sample)
    found_in: list[int | None] = []
    found_row: list[int | None] = []
    for start in range(0, len(packed), _AT_A_TIME):
        some = (column.slice(start, _AT_A_TIME).to_pylist() for column in columns)
        for seq_id, origin, own, sample in zip(*some, strict=True):
            of_bucket = rows.get((seq_id, origin), {}) if sample else {}
            bucket = own if own in of_bucket else next(iter(of_bucket), None)
            found_in.append(bucket)
            found_row.append(None if bucket is None else of_bucket[bucket])
    return pa.array(found_in, pa.int32()), pa.array(found_row, pa.int32())


def _cluster_sizes(clusters: pa.ChunkedArray, is_train: pa.ChunkedArray) -> pa.Array:
    """Return the number of training chains in the cluster of each chain."""
    names = pc.unique(clusters.drop_null())
    number = pc.index_in(clusters, value_set=names).fill_null(len(names)).to_numpy()
    train = is_train.to_numpy()
    sizes = np.bincount(number[train], minlength=len(names) + 1)[number]
    return pa.array(np.where(number == len(names), train, sizes), pa.int32())
