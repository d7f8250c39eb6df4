"""The chains that can be templates: those of all chain shards, by entry."""

from __future__ import annotations

import datetime
from collections import defaultdict
from pathlib import Path

from scalefold.raw.chains import entry_of
from scalefold.shards.codec import decode_chain
from scalefold.shards.schema import shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import ChainSummary


class TemplateStore:
    """Sequences of packed chains, read when first asked for.

    Parameters
    ----------
    folder
        The shard folder.
    summaries
        Of all its chain shards.
    """

    def __init__(self, folder: Path, summaries: list[ChainSummary]) -> None:
        self._folder = folder
        self._places: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        for summary in summaries:
            for facts in summary.rows:
                self._places[entry_of(facts.chain_key)].append(
                    (facts.chain_key, summary.head.bucket, facts.row)
                )
        self._dates = {
            entry_of(facts.chain_key): facts.release_date
            for summary in summaries
            for facts in summary.rows
        }
        self._files: dict[int, ShardFile] = {}
        self._sequences: dict[str, dict[str, str]] = {}

    def sequences(self, entry_id: str) -> dict[str, str]:
        """Return chain key -> sequence of an entry's packed chains; empty if there are none."""
        found = self._sequences.get(entry_id)
        if found is None:
            places = self._places.get(entry_id, [])
            found = {key: self._read(key, bucket, row) for key, bucket, row in places}
            self._sequences[entry_id] = found
        return found

    def release_date(self, entry_id: str) -> datetime.date | None:
        """Return the release of an entry that has packed chains, ``None`` where it is not known."""
        date = self._dates[entry_id]
        return None if date is None else datetime.date.fromisoformat(date)

    def _read(self, chain_key: str, bucket: int, row: int) -> str:
        file = self._files.get(bucket)
        if file is None:
            file = ShardFile(self._folder / shard_file("chain", bucket), "chain")
            self._files[bucket] = file
        return decode_chain(file.row(row, chain_key)).sequence
