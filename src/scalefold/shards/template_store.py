"""The chains that can be templates: those of all chain shards, by entry."""

from __future__ import annotations

import datetime
import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from scalefold.chem.residues import RESTYPES_WITH_X
from scalefold.errors import ChecksumError
from scalefold.raw.chains import entry_of
from scalefold.shards.repack_hint import repack_hint
from scalefold.shards.schema import shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import ChainFacts, ChainSummary


class TemplateStore:
    """Sequences of packed chains, read when first asked for; and their releases.

    Chains of one sequence are read once. A sequence that does not have its hash is an error.

    Parameters
    ----------
    folder
        The shard folder.
    summaries
        Of its chain shards.
    """

    def __init__(self, folder: Path, summaries: Iterable[ChainSummary]) -> None:
        self._folder = folder
        self._chains: dict[str, list[tuple[int, ChainFacts]]] = defaultdict(list)
        for summary in summaries:
            for facts in summary.rows:
                self._chains[entry_of(facts.chain_key)].append((summary.head.bucket, facts))
        self._files: dict[int, ShardFile] = {}
        self._of_entry: dict[str, dict[str, str]] = {}
        self._of_id: dict[str, str] = {}

    def sequences(self, entry_id: str) -> dict[str, str]:
        """Return chain key -> sequence of an entry's packed chains; empty if there are none."""
        found = self._of_entry.get(entry_id)
        if found is None:
            chains = self._chains.get(entry_id, [])
            found = {facts.chain_key: self._read(bucket, facts) for bucket, facts in chains}
            self._of_entry[entry_id] = found
        return found

    def release_date(self, entry_id: str) -> datetime.date | None:
        """Return the release of an entry that has packed chains, ``None`` where it is not known."""
        _, facts = self._chains[entry_id][0]
        return facts.date

    def _read(self, bucket: int, facts: ChainFacts) -> str:
        sequence = self._of_id.get(facts.seq_id)
        if sequence is None:
            file = self._files.get(bucket)
            if file is None:
                file = ShardFile(self._folder / shard_file("chain", bucket), "chain")
                self._files[bucket] = file
            (aatype,) = file.scan("aatype", [facts.row])
            codes = aatype[0].values.to_numpy()
            sequence = "".join(RESTYPES_WITH_X[code] for code in codes)
            if hashlib.sha256(sequence.encode()).hexdigest() != facts.seq_id:
                raise ChecksumError(
                    f"{file.path}, row {facts.row}, chain {facts.chain_key}: damaged: its sequence "
                    f"does not have the hash that its summary states. {repack_hint(file.path)}"
                )
            self._of_id[facts.seq_id] = sequence
        return sequence
