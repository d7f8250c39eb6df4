"""Template hits to one-row record batches and back: as the search aligned them, and located."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scalefold.raw.aligned_hit import AlignedHit
from scalefold.raw.templates import Located
from scalefold.shards.codec import one_row
from scalefold.shards.records import TemplateHit
from scalefold.shards.schema import HIT_TYPE


def encode_hits(seq_id: bytes, hits: Sequence[AlignedHit]) -> pa.RecordBatch:
    """Return the ``hits`` row of an alignment."""
    rows = [
        {
            "chain_key": hit.chain_key,
            "sum_probs": hit.sum_probs,
            "prob": hit.probability,
            "query_start": hit.query_start,
            "template_start": hit.template_start,
            "query_aligned": hit.query_aligned,
            "template_aligned": hit.template_aligned,
        }
        for hit in hits
    ]
    return one_row("hits", {"seq_id": seq_id, "hits": rows})


class PackedHits(Sequence[AlignedHit]):
    """The hits of a ``hits`` row, each decoded when it is asked for."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._columns = dict(
            zip([field.name for field in HIT_TYPE], _members(batch.column("hits")), strict=True)
        )
        self.chain_keys: list[str] = self._columns["chain_key"].to_pylist()

    def __len__(self) -> int:
        """Return the number of hits."""
        return len(self.chain_keys)

    def __getitem__(self, number: int) -> AlignedHit:  # type: ignore[override]
        """Return a hit."""
        known = {name: column[number].as_py() for name, column in self._columns.items()}
        return AlignedHit(probability=known.pop("prob"), **known)


def encode_located(
    seq_id: bytes, hits: Sequence[AlignedHit], located: Mapping[int, Located]
) -> pa.RecordBatch:
    """Return the ``templates`` row of an alignment.

    Parameters
    ----------
    located
        Number of the hit -> where its template is, the best first.
    """
    rows = []
    for number, found in located.items():
        q_idx, t_idx = found.realigned or ((), ())
        place = {"hit": number, "chain_key": found.chain_key, "shift": found.shift}
        rows.append({**place, "q_idx": q_idx, "t_idx": t_idx})
    best = next(template_hits(hits, located), None)
    covered = 0 if best is None else len(best.q_idx)
    return one_row("templates", {"seq_id": seq_id, "covered": covered, "located": rows})


def decode_located(batch: pa.RecordBatch) -> dict[int, Located]:
    """Return the content of a ``templates`` row (see :func:`encode_located`)."""
    numbers, keys, shifts, q_idx, t_idx = _members(batch.column("located"))
    return {
        number: Located(
            key, shift, (_copy(q_idx[i]), _copy(t_idx[i])) if len(q_idx[i].values) else None
        )
        for i, (number, key, shift) in enumerate(
            zip(numbers.to_pylist(), keys.to_pylist(), shifts.to_pylist(), strict=True)
        )
    }


def template_hits(
    hits: Sequence[AlignedHit], located: Mapping[int, Located]
) -> Iterator[TemplateHit]:
    """Yield the located hits of an alignment, by descending ``sum_probs``."""
    for number, found in located.items():
        hit = hits[number]
        q_idx, t_idx = found.pairs(hit)
        yield TemplateHit(found.chain_key, hit.sum_probs, hit.probability, q_idx, t_idx)


def decode_former_templates(batch: pa.RecordBatch) -> Iterator[TemplateHit]:
    """Yield the templates of an ``msa`` row of schema version 1."""
    keys, sum_probs, probs, q_idx, t_idx = _members(batch.column("templates"))
    for i in range(len(keys)):
        yield TemplateHit(
            chain_key=keys[i].as_py(),
            sum_probs=sum_probs[i].as_py(),
            prob=probs[i].as_py(),
            q_idx=_copy(q_idx[i]),
            t_idx=_copy(t_idx[i]),
        )


def _members(column: pa.Array) -> list[pa.Array]:
    """Return the members of the structs of the one list in a column."""
    members: list[pa.Array] = column.flatten().flatten()
    return members


def _copy(item: pa.Scalar) -> NDArray[np.int32]:
    array: NDArray[np.int32] = item.values.to_numpy().copy()
    return array
