"""The list of chains as columns, and whether a packed bucket holds what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.raw.chain_key import entry_of
from scalefold.raw.chains import ChainRow
from scalefold.shards.buckets import bucket_of
from scalefold.shards.repack_hint import PACK_ALL_AGAIN

_COLUMNS: Final = pa.schema(
    [*((name, pa.string()) for name in ChainRow._fields), ("bucket", pa.int32())]
)


def list_table(rows: Sequence[ChainRow], num_buckets: int) -> pa.Table:
    """Return the list of chains, with the bucket of each."""
    columns: dict[str, list[str | int | None]] = {
        name: [getattr(row, name) for row in rows] for name in ChainRow._fields
    }
    columns["bucket"] = [bucket_of(row.entry_id, num_buckets) for row in rows]
    return pa.Table.from_pydict(columns, _COLUMNS)


def check_searched(listed: pa.Table, searched: Sequence[str], config: Config) -> None:
    """Check that packing looked for the alignments of all chains of a bucket but templates."""
    is_due = pc.and_not(
        pc.not_equal(listed["split"], "template"),
        pc.is_in(listed["chain_key"], value_set=pa.array(searched, pa.string())),
    )
    for row in listed.filter(is_due).slice(0, 1).to_pylist():
        raise InputError(
            f"{config.data.chains}: {row['chain_key']} is in split {row['split']}, it was new or a "
            f"template when its bucket was packed. {_pack_again(row['chain_key'], config)}"
        )


def check_table(
    listed: pa.Table, packed: pa.RecordBatch, bad: Sequence[str], config: Config
) -> None:
    """Check that a bucket was packed with the lines that the list of chains has now."""
    keys, packed_keys = listed["chain_key"], packed["chain_key"]
    place = pc.index_in(keys, value_set=packed_keys)
    is_lost = pc.and_not(pc.is_null(place), pc.is_in(keys, value_set=pa.array(bad, pa.string())))
    is_gone = pc.invert(pc.is_in(packed_keys, value_set=keys))
    then, now = packed["cluster_id"].take(place.combine_chunks()), listed["cluster_id"]
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


def _pack_again(chain_key: str, config: Config) -> str:
    """How a chain's bucket is fixed, for errors."""
    bucket = bucket_of(entry_of(chain_key), config.data.num_buckets)
    return f"Pack bucket {bucket} again; {PACK_ALL_AGAIN}."
