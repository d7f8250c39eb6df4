"""What is known of packed alignments, as columns: as objects, those of the PDB would take 60 MB."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from scalefold.shards.summary import MsaSummary

ALIGNMENT_COLUMNS: Final = pa.schema(
    [
        ("msa_shard", pa.int32()),
        ("msa_row", pa.int32()),
        ("seq_id", pa.binary(32)),
        ("origin", pa.string()),
        ("chain_key", pa.string()),  # the chain whose files were read
        ("is_alone", pa.bool_()),  # the query is its only row
    ]
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
    return pa.RecordBatch.from_pydict(columns, ALIGNMENT_COLUMNS)
