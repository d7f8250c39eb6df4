"""Find the template hits of one bucket's alignments in the packed structures of all."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from scalefold.config.data import ShardsConfig
from scalefold.errors import ChecksumError
from scalefold.raw.chain_key import entry_of
from scalefold.raw.templates import Located, locate
from scalefold.shards.hit_codec import PackedHits, encode_located
from scalefold.shards.pack_alignments import EXCLUDED
from scalefold.shards.repack_hint import repack_hint
from scalefold.shards.schema import shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.template_store import TemplateStore
from scalefold.shards.writer import ShardFacts, write_shard

TEMPLATE_OUTCOMES: Final = (
    "kept",
    EXCLUDED,
    "of the same entry",
    "structure not packed",
    "too new, or of unknown date",
    "not found in its structure",
    "beyond max_template_hits",
)
"""Outcome of a template hit."""


class _Users(NamedTuple):
    """What template hits are filtered by: the chains that share an alignment.

    Attributes
    ----------
    newest : date or None
        Last release of all, ``None`` where none is known.
    """

    entries: set[str]
    newest: datetime.date | None

    @staticmethod
    def of(chains: pa.Table) -> dict[int, _Users]:
        """Return row -> those facts of the chains that use its alignment."""
        keys: dict[int, set[str]] = defaultdict(set)
        dates: dict[int, list[datetime.date]] = defaultdict(list)
        for chain in chains.select(["msa_row", "chain_key", "release_date"]).to_pylist():
            keys[chain["msa_row"]].add(entry_of(chain["chain_key"]))
            if chain["release_date"] is not None:
                dates[chain["msa_row"]].append(chain["release_date"])
        return {row: _Users(of_row, max(dates[row], default=None)) for row, of_row in keys.items()}


def locate_templates(
    out: Path,
    bucket: int,
    alignments: pa.Table,
    users: pa.Table,
    store: TemplateStore,
    settings: ShardsConfig,
) -> tuple[ShardFacts, Counter[str]]:
    """Write ``templates-<bucket>.arrow``, of which each row goes with that of the msa shard.

    The best ``shards.max_template_hits`` by ``sum_probs`` are kept. Those that were released after
    the last chain that uses the alignment serve none and do not count among them: the best hits of
    an old query may all be newer than it. Nor do hits of the same entry: they are dropped, or,
    where chains of other entries share the row, kept besides for those.

    Parameters
    ----------
    out
        Shard folder with the bucket's shard of hits.
    alignments
        See :func:`~.all_buckets.alignment_columns`; of the bucket.
    users
        Rows of the index: the chains that use the bucket's alignments.

    Returns
    -------
    ShardFacts
        Of the file.
    Counter
        How many hits had each of `TEMPLATE_OUTCOMES`. Packing has counted those excluded.

    Raises
    ------
    InputError
        A shard is missing or damaged, or there is no room.
    """
    users_of = _Users.of(users)
    file = ShardFile(out / shard_file("hits", bucket), "hits")
    outcomes: Counter[str] = Counter()
    path = out / shard_file("templates", bucket)
    with write_shard(path, "templates", settings.compression) as shard:
        for facts in alignments.to_pylist():
            row, seq_id, chain_key = facts["msa_row"], facts["seq_id"], facts["chain_key"]
            batch = file.row(row, chain_key)
            if batch.column("seq_id")[0].as_py() != seq_id:
                raise ChecksumError(
                    f"{file.path}, row {row}: hits of another sequence than chain {chain_key} has. "
                    f"{repack_hint(file.path)}"
                )
            hits = PackedHits(batch)
            chosen = users_of.get(row, _Users(set(), None))
            located = _located(hits, chosen, store, settings.max_template_hits, outcomes)
            shard.add_batch(encode_located(seq_id, hits, located))
    file.close()
    return shard.facts, outcomes


def _located(
    hits: PackedHits, users: _Users, store: TemplateStore, most: int, outcomes: Counter[str]
) -> dict[int, Located]:
    """Return the hits to keep by number, and count what becomes of all."""
    kept: dict[int, Located] = {}
    num_counted = 0
    for number, chain_key in enumerate(hits.chain_keys):
        entry = entry_of(chain_key)
        is_own = entry in users.entries
        if not is_own and num_counted == most:
            outcomes["beyond max_template_hits"] += 1
            continue
        found = _try(hits, number, entry, users, store)
        if isinstance(found, Located):
            kept[number] = found
            num_counted += not is_own
            found = "kept"
        outcomes[found] += 1
    return kept


def _try(
    hits: PackedHits, number: int, entry: str, users: _Users, store: TemplateStore
) -> Located | str:
    """Return where a hit's template is, or what else becomes of the hit."""
    if users.entries == {entry}:
        return "of the same entry"
    candidates = store.sequences(entry)
    if not candidates:
        return "structure not packed"
    released = store.release_date(entry)
    if users.newest is None or released is None or released > users.newest:
        return "too new, or of unknown date"
    found = locate(hits[number], candidates)
    return "not found in its structure" if isinstance(found, str) else found
