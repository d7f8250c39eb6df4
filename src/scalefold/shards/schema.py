"""Arrow schemas of the shard families, file names, and the row hash.

- ``msa-<bucket>.arrow``: one row an alignment. One alignment serves many chains; its identity is
  (sequence hash, origin).
- ``hits-<bucket>.arrow``: the template hits of each alignment, as the search aligned them. Row
  numbers are those of the msa shard.
- ``templates-<bucket>.arrow``: where hits are in packed structures. Row numbers are the same.
- ``chain-<bucket>.arrow``: one row a chain: sequence, structure. Also the template store.
- ``index.arrow``: one row a chain: where its two rows are, and all that sampling asks for, sorted
  by chain key.

Data shards have one row a record batch, so that a sample is one contiguous range of a file.

Folders of schema version 1 are read, too. Their msa rows hold the templates, and they have no
shards of the families ``hits`` and ``templates``.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

SCHEMA_VERSION: Final = 2
"""Version of a shard folder, as its manifest states it."""
FAMILY_VERSIONS: Final = {"msa": 2, "hits": 2, "templates": 2, "chain": 1, "index": 1}
"""Version of each family's files: that of the first folders whose files were the same."""
FORMER_VERSION: Final = 1
"""Folders and msa shards of this version are read, too."""
INDEX_FILE: Final = "index.arrow"
MANIFEST_FILE: Final = "manifest.json"
REJECTED_FILE: Final = "rejected.tsv"
HASH_COLUMN: Final = "row_xxh3"

_BUCKET_FILE: Final = re.compile(r"([a-z]+)-([0-9]{5,9})\.(?:arrow|json)")
_VERSION_KEY: Final = b"scalefold.schema_version"
_FAMILY_KEY: Final = b"scalefold.family"


def _required(name: str, dtype: pa.DataType) -> pa.Field:
    return pa.field(name, dtype, nullable=False)


def _list_of(dtype: pa.DataType) -> pa.DataType:
    return pa.list_(_required("item", dtype))


HIT_TYPE: Final = pa.struct(
    [
        _required("chain_key", pa.string()),  # as the searched database names it
        _required("sum_probs", pa.float32()),
        _required("prob", pa.float32()),
        _required("query_start", pa.int32()),
        _required("template_start", pa.int32()),
        _required("query_aligned", pa.string()),
        _required("template_aligned", pa.string()),
    ]
)
LOCATED_TYPE: Final = pa.struct(
    [
        _required("hit", pa.int32()),  # number among the row's hits
        _required("chain_key", pa.string()),
        _required("shift", pa.int32()),  # of the template's residues
        _required("q_idx", _list_of(pa.int32())),  # both empty where the shift says all
        _required("t_idx", _list_of(pa.int32())),
    ]
)
FORMER_TEMPLATE_TYPE: Final = pa.struct(
    [
        _required("chain_key", pa.string()),
        _required("sum_probs", pa.float32()),
        _required("prob", pa.float32()),
        _required("q_idx", _list_of(pa.int32())),
        _required("t_idx", _list_of(pa.int32())),
    ]
)


def _family(name: str, fields: list[pa.Field], version: int | None = None) -> pa.Schema:
    version = version or FAMILY_VERSIONS[name]
    metadata = {_FAMILY_KEY: name.encode(), _VERSION_KEY: str(version).encode()}
    return pa.schema(fields, metadata=metadata)


_HASH: Final = _required(HASH_COLUMN, pa.uint64())
_MSA_FIELDS: Final = [
    _required("seq_id", pa.binary(32)),  # SHA-256 of the sequence
    _required("num_res", pa.int32()),
    _required("num_seq", pa.int32()),
    _required("num_seq_full", pa.int32()),
    _required("msa", pa.large_list(_required("item", pa.uint8()))),  # R x N, row-major
    _required("del_ptr", _list_of(pa.uint32())),  # R + 1
    _required("del_col", _list_of(pa.uint16())),
    _required("del_val", _list_of(pa.uint16())),
    _required("row_source", _list_of(pa.uint8())),  # R
    _required("profile", _list_of(pa.float32())),  # N x 22
]

SCHEMAS: Final[dict[str, pa.Schema]] = {
    "msa": _family("msa", [*_MSA_FIELDS, _HASH]),
    "hits": _family(
        "hits", [_required("seq_id", pa.binary(32)), _required("hits", _list_of(HIT_TYPE)), _HASH]
    ),
    "templates": _family(
        "templates",
        [
            _required("seq_id", pa.binary(32)),
            _required("covered", pa.int32()),  # residues of the query, by the best template
            _required("located", _list_of(LOCATED_TYPE)),
            _HASH,
        ],
    ),
    "chain": _family(
        "chain",
        [
            _required("chain_key", pa.string()),
            _required("label_asym_id", pa.string()),
            _required("auth_asym_id", pa.string()),
            _required("seq_id", pa.binary(32)),
            _required("method", pa.string()),
            _required("origin", pa.string()),  # experimental | distilled
            _required("aatype", _list_of(pa.uint8())),  # N
            _required("atom_mask", _list_of(pa.uint64())),  # N, bit a = atom37 slot a
            _required("xyz", _list_of(pa.float32())),  # observed atoms x 3, by residue, then slot
            pa.field("resolution", pa.float64()),
            pa.field("release_date", pa.date32()),
            pa.field("cluster_id", pa.string()),
            pa.field("confidence", _list_of(pa.float32())),  # N
            _HASH,
        ],
    ),
    "index": _family(
        "index",
        [
            _required("chain_key", pa.string()),
            _required("split", pa.string()),
            _required("origin", pa.string()),
            _required("seq_id", pa.binary(32)),
            _required("length", pa.int32()),
            _required("chain_shard", pa.int32()),
            _required("chain_row", pa.int32()),
            pa.field("msa_shard", pa.int32()),  # null: template only
            pa.field("msa_row", pa.int32()),
            pa.field("release_date", pa.date32()),
            pa.field("resolution", pa.float64()),
            pa.field("cluster_id", pa.string()),
            _required("cluster_size", pa.int32()),
            _required("max_single_residue_fraction", pa.float64()),
        ],
    ),
}
"""Schema of each family, by name. Payload columns are hashed in the order given here."""

_FORMER_MSA: Final = _family(
    "msa",
    [*_MSA_FIELDS, _required("templates", _list_of(FORMER_TEMPLATE_TYPE)), _HASH],
    FORMER_VERSION,
)


def readable_schema(family: str, version: int) -> pa.Schema | None:
    """Schema of a family's files of a version, ``None`` if none of it can be read."""
    if version == FAMILY_VERSIONS[family]:
        return SCHEMAS[family]
    return _FORMER_MSA if (family, version) == ("msa", FORMER_VERSION) else None


def shard_file(family: str, bucket: int) -> str:
    """File name of one bucket's shard."""
    return f"{family}-{bucket:05d}.arrow"


def summary_file(family: str, bucket: int) -> str:
    """File name of the summary that goes with a bucket's shard."""
    return f"{family}-{bucket:05d}.json"


def bucket_file(file: str) -> tuple[str, int] | None:
    """Return family and bucket of what `shard_file` or `summary_file` gave, else ``None``."""
    match = _BUCKET_FILE.fullmatch(file)
    return None if match is None else (match[1], int(match[2]))


def schema_version(schema: pa.Schema) -> int | None:
    """Schema version that a file's metadata states, ``None`` where it states none."""
    text = (schema.metadata or {}).get(_VERSION_KEY)
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else None


def schema_family(schema: pa.Schema) -> str | None:
    """Family that a file's metadata states, ``None`` where it states none."""
    text = (schema.metadata or {}).get(_FAMILY_KEY)
    return None if text is None else text.decode("utf-8", errors="replace")


def row_hash(batch: pa.RecordBatch) -> int:
    """XXH3-64 over all payload columns of a one-row batch, in schema order.

    Each column enters as its name, a null flag and its value. Strings and byte strings enter as
    their length and bytes; numbers as 8 bytes (integer or double, dates as days since 1970); lists
    of numbers as their length and little-endian items; lists of structs as their length and, item
    by item, their fields. Every part has a fixed or a stated length, so that different rows never
    give the same stream.
    """
    state = xxhash.xxh3_64()
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name != HASH_COLUMN:
            state.update(field.name.encode() + b"\0")
            _hash_value(state, _kind(field.type), column)
    return state.intdigest()


@functools.cache
def _kind(dtype: pa.DataType) -> str:
    """How the values of a type enter the hash."""
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return "structs" if pa.types.is_struct(dtype.value_type) else "numbers"
    if pa.types.is_date(dtype):
        return "date"
    if pa.types.is_string(dtype) or pa.types.is_fixed_size_binary(dtype):
        return "bytes"
    if pa.types.is_floating(dtype):
        return "float"
    return "unsigned" if pa.types.is_unsigned_integer(dtype) else "signed"


def _hash_value(state: xxhash.xxh3_64, kind: str, column: pa.Array) -> None:
    """Feed the single value of a one-element array."""
    if column.null_count:
        state.update(b"\0")
        return
    state.update(b"\1")
    if kind == "numbers":
        items = column[0].values
        state.update(len(items).to_bytes(8, "little"))
        state.update(_little_endian(items.to_numpy(zero_copy_only=True)))
    elif kind == "structs":
        items = column[0].values
        state.update(len(items).to_bytes(8, "little"))
        members = [_encoded(field.type, part) for field, part in zip(items.type, items.flatten())]
        for parts in zip(*members):
            for part in parts:
                state.update(part)
    else:
        # Days since 1970: damaged days need not be a date.
        value = (column.view(pa.int32()) if kind == "date" else column)[0].as_py()
        state.update(_scalar_bytes(kind, value))


_WIDE: Final = {"float": "<f8", "signed": "<i8", "unsigned": "<u8"}


def _encoded(dtype: pa.DataType, column: pa.Array) -> list[bytes]:
    """What each value of a column adds to the hash: as `_hash_value`, all at once."""
    kind = _kind(dtype)
    if kind in _WIDE and not column.null_count:
        packed = np.ones(len(column), [("flag", np.uint8), ("value", _WIDE[kind])])
        packed["value"] = column.to_numpy(zero_copy_only=False)
        content, size = packed.tobytes(), packed.itemsize
        return [content[i : i + size] for i in range(0, len(content), size)]
    if kind != "numbers":
        values = column.to_pylist()
        return [b"\0" if v is None else b"\1" + _scalar_bytes(kind, v) for v in values]
    if column.null_count:
        raise pa.ArrowInvalid("a list that may not be null is null")
    items, ends = column.values.to_numpy(zero_copy_only=True), column.offsets.to_pylist()
    return [
        b"\1" + (end - start).to_bytes(8, "little") + _little_endian(items[start:end]).tobytes()
        for start, end in itertools.pairwise(ends)
    ]


def _scalar_bytes(kind: str, value: Any) -> bytes:
    if kind == "bytes":
        content = value.encode() if isinstance(value, str) else value
        return len(content).to_bytes(8, "little") + content
    if kind == "float":
        return struct.pack("<d", value)
    return value.to_bytes(8, "little", signed=kind != "unsigned")


def _little_endian(values: NDArray[Any]) -> memoryview:
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return little.view(np.uint8).data
