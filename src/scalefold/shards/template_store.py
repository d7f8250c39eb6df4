"""The chains that can be templates: those of all chain shards, by entry."""

from __future__ import annotations

import datetime
import functools
import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scalefold.chem.residues import RESTYPES_WITH_X
from scalefold.errors import ChecksumError
from scalefold.raw.chain_key import entry_of
from scalefold.shards.repack_hint import repack_hint
from scalefold.shards.schema import shard_file
from scalefold.shards.shard_file import ShardFile

_ENTRIES: Final = 10_000
"""Entries that are known at the same time."""
_LETTERS: Final = RESTYPES_WITH_X.encode().ljust(256, b"?")


class _Entry(NamedTuple):
    """Chain key -> sequence of an entry's chains, and the release of the first."""

    sequences: dict[str, str]
    released: datetime.date | None


class TemplateStore:
    """Sequences of packed chains, read when one of their bucket is first asked for; and releases.

    A sequence that does not have its hash is an error.

    Parameters
    ----------
    chains
        Of its chain shards (:func:`~.chain_table.chain_table`).
    """

    def __init__(self, folder: Path, chains: pa.Table) -> None:
        self._folder = folder
        names = ["chain_key", "chain_shard", "chain_row", "seq_id", "release_date"]
        seq_ids = pc.unique(chains["seq_id"])
        numbers = pc.index_in(chains["seq_id"], value_set=seq_ids)
        self._chains = chains.select(names).append_column("sequence", numbers)
        self._keys = chains["chain_key"]
        self._sequences: list[str | None] = [None] * len(seq_ids)
        self._entry = functools.lru_cache(_ENTRIES)(self._read_entry)

    def sequences(self, entry_id: str) -> dict[str, str]:
        """Return chain key -> sequence of an entry's packed chains; empty if there are none."""
        return self._entry(entry_id).sequences

    def release_date(self, entry_id: str) -> datetime.date | None:
        """Return an entry's release, ``None`` where it is not known or no chain is packed."""
        return self._entry(entry_id).released

    def _read_entry(self, entry_id: str) -> _Entry:
        members = self._members(entry_id)
        return _Entry(
            {member["chain_key"]: self._sequence(member) for member in members},
            members[0]["release_date"] if members else None,
        )

    def _members(self, entry_id: str) -> list[dict[str, Any]]:
        """Return what is known of an entry's chains, by chain key."""
        start = bisect_left(self._keys, f"{entry_id}_", key=pa.StringScalar.as_py)
        end = bisect_left(self._keys, f"{entry_id}`", key=pa.StringScalar.as_py)  # ` is behind _
        members: list[dict[str, Any]] = self._chains.slice(start, end - start).to_pylist()
        return [member for member in members if entry_of(member["chain_key"]) == entry_id]

    def _sequence(self, chain: Mapping[str, Any]) -> str:
        sequence = self._sequences[chain["sequence"]]
        if sequence is None:
            self._read_bucket(chain["chain_shard"])
            return self._sequence(chain)
        return sequence

    def _read_bucket(self, bucket: int) -> None:
        """Read the sequences of a bucket that are not known yet.

        All at once, since a file that stays open has its pages in memory.
        """
        members = self._chains.filter(pc.equal(self._chains["chain_shard"], bucket))
        known = self._sequences
        new = {m["sequence"]: m for m in members.to_pylist() if known[m["sequence"]] is None}
        file = ShardFile(self._folder / shard_file("chain", bucket), "chain")
        columns = file.scan("aatype", [member["chain_row"] for member in new.values()])
        for (number, member), aatype in zip(new.items(), columns, strict=True):
            letters = aatype[0].values.to_numpy().tobytes().translate(_LETTERS)
            if hashlib.sha256(letters).digest() != member["seq_id"]:
                raise ChecksumError(
                    f"{file.path}, row {member['chain_row']}, chain {member['chain_key']}: "
                    "damaged: its sequence does not have the hash that its summary states. "
                    f"{repack_hint(file.path)}"
                )
            known[number] = letters.decode("ascii")
        file.close()
