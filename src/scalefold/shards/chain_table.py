"""What is known of packed chains, as columns: as objects, those of the PDB would take gigabytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from scalefold.shards.schema import SCHEMAS
from scalefold.shards.summary import ChainSummary

_OF_ALL_CHAINS: Final = ("split", "msa_shard", "msa_row", "cluster_size")
"""Columns of the index that depend on the list of chains and on other buckets."""
_SCHEMA: Final = pa.schema(f for f in SCHEMAS["index"] if f.name not in _OF_ALL_CHAINS)


def chain_columns(summary: ChainSummary) -> pa.RecordBatch:
    """Return the chains of a bucket: the index's columns that a chain has by itself."""
    rows = summary.rows
    columns = {
        "chain_key": [facts.chain_key for facts in rows],
        "origin": [facts.origin for facts in rows],
        "seq_id": [bytes.fromhex(facts.seq_id) for facts in rows],
        "length": [facts.length for facts in rows],
        "chain_shard": [summary.head.bucket] * len(rows),
        "chain_row": [facts.row for facts in rows],
        "release_date": [facts.date for facts in rows],
        "resolution": [facts.resolution for facts in rows],
        "cluster_id": [facts.cluster_id for facts in rows],
        "max_single_residue_fraction": [facts.max_single_residue_fraction for facts in rows],
    }
    return pa.RecordBatch.from_pydict(columns, _SCHEMA)


def chain_table(buckets: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the `chain_columns` of some buckets together, sorted by chain key."""
    table = pa.Table.from_batches(buckets)
    order = pc.sort_indices(table["chain_key"])
    for number, field in enumerate(table.schema):  # one by one: all would be in memory twice
        table = table.set_column(number, field, table[number].take(order))
        pa.default_memory_pool().release_unused()
    return table
