"""The rows of the index: where each chain's structure and alignment are, and its cluster's size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scalefold.shards.schema import SCHEMAS


def index_table(
    packed: pa.Table, alignments: pa.Table, bad: pa.Array
) -> tuple[pa.Table, list[str]]:
    """Return the index, sorted by chain key, and the keys of the chains without an alignment.

    Parameters
    ----------
    packed
        See :func:`~.chain_table.chain_table`; with the split of each chain.
    alignments
        See :func:`~.all_buckets.alignment_columns`; of all buckets, in their order.
    bad
        Keys of the chains that packing has set aside.
    """
    is_bad = pc.is_in(packed["chain_key"], value_set=bad)
    is_sample = pc.and_not(pc.not_equal(packed["split"], "template"), is_bad)
    place = pc.if_else(is_sample, _alignment_of_each(packed, alignments), None)
    is_aligned = pc.is_valid(place)
    split = pc.if_else(is_aligned, packed["split"], "template")
    columns = {
        "split": split,
        "msa_shard": alignments["msa_shard"].take(place),
        "msa_row": alignments["msa_row"].take(place),
        "cluster_size": _cluster_sizes(packed["cluster_id"], pc.equal(split, "train")),
    }
    schema = SCHEMAS["index"]
    index = pa.table({**{name: packed[name] for name in packed.column_names}, **columns})
    unaligned = packed["chain_key"].filter(pc.and_not(is_sample, is_aligned))
    return index.select(schema.names).cast(schema).combine_chunks(), unaligned.to_pylist()


def as_one_integer(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return each pair of integers from 0, below 2**31 and 2**32, as one integer."""
    return pc.add(pc.multiply(first.cast(pa.int64()), 2**32), second)


def _alignment_of_each(packed: pa.Table, alignments: pa.Table) -> pa.ChunkedArray:
    """Return the number of the alignment of each chain, null where there is none.

    It is that of the chain's own bucket, otherwise that of the first bucket that has one.
    """
    sequences, origins = pc.unique(alignments["seq_id"]), pc.unique(alignments["origin"])

    def identities(table: pa.Table) -> pa.ChunkedArray:
        """Number the pairs of sequence and origin that have an alignment."""
        number = pc.index_in(table["seq_id"], value_set=sequences).cast(pa.int64())
        return pc.add(
            pc.multiply(number, len(origins)), pc.index_in(table["origin"], value_set=origins)
        )

    wanted, given = identities(packed), identities(alignments)
    own = pc.index_in(
        as_one_integer(wanted, packed["chain_shard"]),
        value_set=as_one_integer(given, alignments["msa_shard"]),
    )
    return pc.coalesce(own, pc.index_in(wanted, value_set=given))


def _cluster_sizes(clusters: pa.ChunkedArray, is_train: pa.ChunkedArray) -> pa.Array:
    """Return the number of training chains in the cluster of each chain."""
    names = pc.unique(clusters.drop_null())
    number = pc.index_in(clusters, value_set=names).fill_null(len(names)).to_numpy()
    train = is_train.to_numpy()
    sizes = np.bincount(number[train], minlength=len(names) + 1)[number]
    return pa.array(np.where(number == len(names), train, sizes), pa.int32())
