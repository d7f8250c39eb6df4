"""The chains that can be templates: those of all chain shards, by entry."""

from __future__ import annotations

import datetime
from collections import defaultdict
from pathlib import Path

from scalefold.raw.chains import entry_of
from scalefold.shards.codec import decode_chain
from scalefold.shards.schema import shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import ChainFacts, ChainSummary


class TemplateStore:
    """Sequences of packed chains, read when first asked for; and their releases.

    Parameters
    ----------
    folder
        The shard folder.
    summaries
        Of all its chain shards.
    """

    def __init__(self, folder: Path, summaries: list[ChainSummary]) -> None:
        self._folder = folder
        self._chains: dict[str, list[tuple[int, ChainFacts]]] = defaultdict(list)
        for summary in summaries:
            for facts in summary.rows:
                self._chains[entry_of(facts.chain_key)].append((summary.head.bucket, facts))
        self._files: dict[int, ShardFile] = {}
        self._sequences: dict[str, dict[str, str]] = {}

    def sequences(self, entry_id: str) -> dict[str, str]:
        """Return chain key -> sequence of an entry's packed chains; empty if there are none."""
        found = self._sequences.get(entry_id)
        if found is None:
            chains = self._chains.get(entry_id, [])
            found = {facts.chain_key: self._read(bucket, facts) for bucket, facts in chains}
            self._sequences[entry_id] = found
        return found

    def release_date(self, entry_id: str) -> datetime.date | None:
        """Return the release of an entry that has packed chains, ``None`` where it is not known."""
        _, facts = self._chains[entry_id][0]
        return facts.date

    def _read(self, bucket: int, facts: ChainFacts) -> str:
        file = self._files.get(bucket)
        if file is None:
            file = ShardFile(self._folder / shard_file("chain", bucket), "chain")
            self._files[bucket] = file
        return decode_chain(file.row(facts.row, facts.chain_key)).sequence
