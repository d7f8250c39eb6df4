"""Records to one-row record batches and back.

``encode_*`` checks shapes and types and computes the row hash; ``decode_*`` copies a row out of the
file's map, sequentially, before anything works on it.
"""

from __future__ import annotations

from typing import Any, Final, cast, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from scalefold.errors import InputError
from scalefold.shards.records import ChainRecord, MsaRecord, Origin, PartialChain
from scalefold.shards.schema import HASH_COLUMN, SCHEMAS, row_hash

_NUM_ATOMS: Final = 37
_NUM_SYMBOLS: Final = 22
_AS_THEY_ARE: Final = (
    *("chain_key", "label_asym_id", "auth_asym_id", "seq_id", "method", "origin"),
    *("resolution", "release_date", "cluster_id"),
)
"""Fields of a chain that are columns of the same name and value."""
_BITS: Final = np.uint64(1) << np.arange(_NUM_ATOMS, dtype=np.uint64)


def encode_chain(record: ChainRecord) -> pa.RecordBatch:
    """Return the ``chain`` row of a record.

    Raises
    ------
    InputError
        An array's shape or type is not the record's, an atom is at a non-finite position, or the
        origin is unknown.
    """
    key, n = record.chain_key, len(record.aatype)
    _expect(key, "aatype", record.aatype, (n,), np.uint8)
    _expect(key, "positions", record.positions, (n, _NUM_ATOMS, 3), np.float32)
    _expect(key, "atom_mask", record.atom_mask, (n, _NUM_ATOMS), np.bool_)
    if record.confidence is not None:
        _expect(key, "confidence", record.confidence, (n,), np.float32)
    if record.origin not in get_args(Origin):
        raise InputError(
            f"{key}: origin {record.origin!r}, expected {' or '.join(get_args(Origin))}"
        )
    xyz = record.positions[record.atom_mask]
    if not np.isfinite(xyz).all():
        raise InputError(
            f"{key}: {np.sum(~np.isfinite(xyz).all(-1))} observed atom(s) have a non-finite "
            "position. Clear their atom_mask, or leave the chain out."
        )
    return one_row(
        "chain",
        {
            **{name: getattr(record, name) for name in _AS_THEY_ARE},
            "aatype": record.aatype,
            "atom_mask": (record.atom_mask * _BITS).sum(axis=1, dtype=np.uint64),
            "xyz": xyz.reshape(-1),
            "confidence": record.confidence,
        },
    )


def decode_chain(batch: pa.RecordBatch) -> ChainRecord:
    """Return the record of a ``chain`` row (see :func:`encode_chain`).

    Positions are spread over the 37 atom slots when they are first asked for.
    """
    aatype = _array(batch, "aatype")
    atom_mask = (_array(batch, "atom_mask")[:, None] & _BITS) != 0
    xyz = _array(batch, "xyz").reshape(-1, 3)

    def spread() -> dict[str, Any]:
        positions = np.zeros((len(aatype), _NUM_ATOMS, 3), np.float32)
        positions[atom_mask] = xyz
        return {"positions": positions}

    has_confidence = batch.column("confidence").null_count == 0
    known = {
        **{name: _scalar(batch, name) for name in _AS_THEY_ARE},
        "aatype": aatype,
        "atom_mask": atom_mask,
        "confidence": _array(batch, "confidence") if has_confidence else None,
    }
    return PartialChain.of(known, spread)


def encode_msa(record: MsaRecord) -> pa.RecordBatch:
    """Return the ``msa`` row of a record.

    Raises
    ------
    InputError
        An array's shape or type is not the record's, or the alignment is empty.
    """
    key = f"alignment of sequence {record.seq_id.hex()[:12]}"
    if record.msa.ndim != 2 or 0 in record.msa.shape:
        raise InputError(
            f"{key}: msa has shape {record.msa.shape}, expected [rows, residues] with at least "
            "one of each (the query)"
        )
    r, n = record.msa.shape
    d = len(record.del_col)
    _expect(key, "msa", record.msa, (r, n), np.uint8)
    _expect(key, "del_ptr", record.del_ptr, (r + 1,), np.uint32)
    _expect(key, "del_col", record.del_col, (d,), np.uint16)
    _expect(key, "del_val", record.del_val, (d,), np.uint16)
    _expect(key, "row_source", record.row_source, (r,), np.uint8)
    _expect(key, "profile", record.profile, (n, _NUM_SYMBOLS), np.float32)
    if (
        record.del_ptr[0] != 0
        or record.del_ptr[-1] != d
        or (np.diff(record.del_ptr.astype(int)) < 0).any()
    ):
        raise InputError(
            f"{key}: del_ptr runs from {record.del_ptr[0]} to {record.del_ptr[-1]}, expected to "
            f"rise from 0 to {d}, the number of deletions"
        )
    if record.num_seq_full < r:
        raise InputError(f"{key}: num_seq_full {record.num_seq_full} is below the {r} rows stored")
    return one_row(
        "msa",
        {
            "seq_id": record.seq_id,
            "num_res": n,
            "num_seq": r,
            "num_seq_full": record.num_seq_full,
            "msa": record.msa.reshape(-1),
            "del_ptr": record.del_ptr,
            "del_col": record.del_col,
            "del_val": record.del_val,
            "row_source": record.row_source,
            "profile": record.profile.reshape(-1),
        },
    )


def decode_msa(batch: pa.RecordBatch) -> MsaRecord:
    """Return the record of an ``msa`` row (see :func:`encode_msa`)."""
    n, r = _scalar(batch, "num_res"), _scalar(batch, "num_seq")
    return MsaRecord(
        seq_id=_scalar(batch, "seq_id"),
        msa=_array(batch, "msa").reshape(r, n),
        del_ptr=_array(batch, "del_ptr"),
        del_col=_array(batch, "del_col"),
        del_val=_array(batch, "del_val"),
        row_source=_array(batch, "row_source"),
        profile=_array(batch, "profile").reshape(n, _NUM_SYMBOLS),
        num_seq_full=_scalar(batch, "num_seq_full"),
    )


def one_row(family: str, values: dict[str, Any]) -> pa.RecordBatch:
    """Build a one-row batch from Python values and numpy arrays, and add the row hash."""
    schema = SCHEMAS[family]
    values = {**values, HASH_COLUMN: 0}
    columns = [pa.array([values[field.name]], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    columns[-1] = pa.array([row_hash(batch)], pa.uint64())
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _scalar(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name)[0].as_py()


def _array(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    return cast("NDArray[Any]", batch.column(name)[0].values.to_numpy(zero_copy_only=True).copy())


def _expect(
    key: str, name: str, array: NDArray[Any], shape: tuple[int, ...], dtype: DTypeLike
) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise InputError(
            f"{key}: {name} is {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}"
        )
