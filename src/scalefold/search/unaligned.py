"""Which sequences of a run have no alignment, and so are to be searched."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from scalefold.config.schema import Config
from scalefold.fetch.fetched import check_raw
from scalefold.raw.chain_key import entry_of
from scalefold.raw.chains import read_chains
from scalefold.raw.fasta import FastaRecord
from scalefold.raw.raw_folder import alignment_folder
from scalefold.search.given_alignments import find_given
from scalefold.search.one_sequence import RECORD
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import filled_buckets
from scalefold.shards.chain_table import chain_columns, chain_table
from scalefold.shards.summary import read_chain_summary
from scalefold.shards.template_store import TemplateStore


def unaligned(config: Config, raw: Path, shards: Path) -> list[FastaRecord]:
    """Return one chain of each sequence that has no alignment.

    Chains used only as templates need none. What a search has brought earlier does not count: the
    search itself knows what of it is still to be done.

    Parameters
    ----------
    config
        Section ``data``.
    shards
        Folder with the chain shards of all buckets.

    Raises
    ------
    InputError
        The raw folder, the table of chains or a chain shard is missing.
    """
    check_raw(raw)
    chains = read_chains(config.data.chains)
    config = with_bucket_count(config, shards, chains)
    buckets = filled_buckets(chains, config.data.num_buckets)
    packed = chain_table(
        chain_columns(read_chain_summary(shards, bucket, config)) for bucket in buckets
    )
    needing = {row.chain_key for row in chains if row.split != "template"}
    members: dict[tuple[bytes, str], list[str]] = defaultdict(list)
    columns = [packed[name].to_pylist() for name in ("chain_key", "seq_id", "origin")]
    for key, seq_id, origin in zip(*columns, strict=True):
        if key in needing:
            members[seq_id, origin].append(key)
    store = TemplateStore(shards, packed)
    found: list[FastaRecord] = []
    for keys in members.values():
        searched = {key for key in keys if (alignment_folder(raw, key) / RECORD).is_file()}
        if any(_has_alignment(raw, key, config) for key in keys if key not in searched):
            continue
        key = min(searched or keys, key=lambda key: (not _is_given(key, config), key))
        found.append(FastaRecord(key, store.sequences(entry_of(key))[key]))
    return sorted(found)


def _is_given(chain_key: str, config: Config) -> bool:
    folder = None if config.search is None else config.search.given
    return folder is not None and find_given(folder, chain_key) is not None


def _has_alignment(raw: Path, chain_key: str, config: Config) -> bool:
    folder = alignment_folder(raw, chain_key) / "a3m"
    return any((folder / f"{name}.a3m").is_file() for name in config.data.alignments)
