"""Second stage of packing: alignments and template hits of one bucket to two shards.

They depend on the files and the chains of the bucket alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track

from scalefold.config.data import DataConfig
from scalefold.config.identity import packing_hash, packing_settings
from scalefold.config.schema import Config
from scalefold.errors import InputError, UnreadableError
from scalefold.fetch.fetched import FetchRecord, check_raw
from scalefold.raw.a3m import read_folder
from scalefold.raw.alignment import Alignment
from scalefold.raw.chain_key import entry_of
from scalefold.raw.chains import read_chains
from scalefold.raw.hhr import HhrHit, read_hhr
from scalefold.raw.raw_folder import alignment_folder
from scalefold.raw.rejected import Rejected, cause_first
from scalefold.raw.templates import best_first, sequence_reason
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_chains
from scalefold.shards.chain_table import chain_columns, chain_table
from scalefold.shards.hit_codec import encode_hits
from scalefold.shards.records import MsaRecord
from scalefold.shards.schema import FAMILY_VERSIONS, shard_file
from scalefold.shards.source_files import SourceFile
from scalefold.shards.summary import (
    AlignmentFacts,
    BucketHead,
    ChainFacts,
    MsaSummary,
    queries_hash,
    read_chain_summary,
    write_summary,
)
from scalefold.shards.template_store import TemplateStore
from scalefold.shards.writer import write_shard

STAGE: Final = "alignment"
STAYS: Final = "The structure stays as a template."
"""Ends the reason of a chain whose structure is good and whose alignment is not."""
EXCLUDED: Final = "excluded by sequence"
"""Outcome of a template hit that serves no chain of this sequence."""


def pack_alignments(
    config: Config, raw: Path, out: Path, bucket: int, console: Console | None = None
) -> MsaSummary:
    """Write ``msa-<bucket>.arrow``, ``hits-<bucket>.arrow`` and the summary of both.

    They have one row for each sequence of the bucket.

    Chains of one sequence (and origin) share a row. It is made from the files of the first of
    them, by chain key, that has usable ones; a chain whose files are tried and found bad, or not
    what fetch got, is set aside. Chains without any alignment files are left to
    :func:`~.pack_index.pack_index`, which knows the alignments of all buckets.

    Of each alignment the first rows are taken, as many as ``shards.max_rows`` says. They are merged
    in the order of ``data.alignments`` and deduplicated; the profile is that of the whole merged
    alignment, of which at most ``shards.max_rows.together`` rows are stored, of each file the same
    share.
    Template hits are filtered by sequence, and kept by descending ``sum_probs``. Their structures
    are found by :func:`~.pack_index.pack_index`, which knows those of all buckets.

    Parameters
    ----------
    out
        Shard folder with the bucket's chain shard.

    Raises
    ------
    InputError
        The raw folder, the table of chains, the chain shard or a file that was fetched is missing,
        the chain shard was packed with other settings, or there is no room.
    """
    check_raw(raw)
    chains = read_chains(config.data.chains)
    config = with_bucket_count(config, out, chains)
    structures = read_chain_summary(out, bucket, config)
    wanted = {
        row.chain_key
        for row in bucket_chains(chains, bucket, config.data.num_buckets)
        if row.split != "template"
    }
    files = [path for key in sorted(wanted) for path in _files(config.data, raw, key)]
    fetched = FetchRecord(raw, files, "alignments", bucket)
    fetched.check_presence()
    groups: dict[tuple[str, str], list[ChainFacts]] = defaultdict(list)
    for facts in sorted(structures.rows, key=lambda facts: facts.chain_key):
        if facts.chain_key in wanted:
            groups[facts.seq_id, facts.origin].append(facts)

    packer = _Packer(
        config, raw, fetched, TemplateStore(out, chain_table([chain_columns(structures)]))
    )
    rows: list[AlignmentFacts] = []
    compression = config.shards.compression
    with (
        write_shard(out / shard_file("hits", bucket), "hits", compression) as hits,
        write_shard(out / shard_file("msa", bucket), "msa", compression) as shard,
    ):
        for (seq_id, origin), members in track(
            groups.items(),
            description=f"alignments, bucket {bucket}",
            console=console or Console(stderr=True),
            disable=not groups,
        ):
            for facts in members:
                packed = packer.record(facts)
                if packed is not None:
                    record, stored, found = packed
                    hits.add_batch(encode_hits(record.seq_id, found))
                    rows.append(
                        AlignmentFacts(
                            row=shard.add(record),
                            seq_id=seq_id,
                            origin=origin,
                            chain_key=facts.chain_key,
                            num_other_parents=stored.num_other_parents,
                            cut=dict(stored.cut),
                            num_rows=len(record.msa),
                        )
                    )
                    break
    head = BucketHead(
        family="msa",
        bucket=bucket,
        schema_version=FAMILY_VERSIONS["msa"],
        config_hash=packing_hash(config),
        settings=packing_settings(config),
        shard=shard.facts,
        rejected=tuple(packer.rejected),
        sources=tuple(packer.sources),
    )
    summary = MsaSummary(
        head,
        rows=tuple(rows),
        template_hits={EXCLUDED: packer.num_excluded},
        structures=queries_hash(structures),
        chains=tuple(sorted(wanted)),
        hits=hits.facts,
    )
    write_summary(out, summary)
    return summary


def _files(data: DataConfig, raw: Path, chain_key: str) -> list[Path]:
    """Return the files that a chain may have: alignments, then template hits."""
    folder = alignment_folder(raw, chain_key)
    files = [folder / "a3m" / f"{name}.a3m" for name in data.alignments]
    if data.template_hits is not None:
        files.append(folder / "hhr" / f"{data.template_hits}.hhr")
    return files


class _Packer:
    """Makes the rows of one bucket, and remembers what it set aside."""

    def __init__(
        self, config: Config, raw: Path, fetched: FetchRecord, store: TemplateStore
    ) -> None:
        self._data, self._shards = config.data, config.shards
        self._raw, self._fetched = raw, fetched
        self._store = store
        self.rejected: list[Rejected] = []
        self.sources: list[SourceFile] = []
        self.num_excluded = 0

    def record(self, facts: ChainFacts) -> tuple[MsaRecord, Alignment, list[HhrHit]] | None:
        """Return what to store of a chain, that as an alignment, and its template hits.

        ``None`` if it has no files or unusable ones.
        """
        folder = alignment_folder(self._raw, facts.chain_key)
        files = [p for p in _files(self._data, self._raw, facts.chain_key) if p.is_file()]
        if not any(path.suffix == ".a3m" for path in files):
            return None
        hhr = next((path for path in files if path.suffix == ".hhr"), None)
        others = {int(i): letters for i, letters in facts.other_parents.items()}
        try:
            sequence = self._store.sequences(entry_of(facts.chain_key))[facts.chain_key]
            full = read_folder(
                folder, sequence, self._data.alignments, others, self._shards.max_rows_of
            )
            hits = [] if hhr is None else _template_hits(hhr, sequence, others)
            sources = [SourceFile.of(self._raw, path) for path in files]
            for path, source in zip(files, sources, strict=True):
                self._fetched.check_content(path, source.bytes, source.sha256)
        except UnreadableError:  # its owner can fix that
            raise
        except InputError as error:
            reason = f"{cause_first(str(error)).rstrip('.')}. {STAYS}"
            self.rejected.append(Rejected(facts.chain_key, STAGE, reason))
            return None
        self.sources += sources
        stored = full.share(self._shards.max_merged_rows, self._data.alignments)
        record = MsaRecord.of(bytes.fromhex(facts.seq_id), full, stored)
        return record, stored, self._usable(hits, sequence, others)

    def _usable(self, hits: list[HhrHit], sequence: str, others: Mapping[int, str]) -> list[HhrHit]:
        """Return the hits that may serve the sequence, by descending sum of probabilities."""
        usable = [h for h in best_first(hits) if sequence_reason(h, sequence, others) is None]
        self.num_excluded += len(hits) - len(usable)
        return usable


def _template_hits(hhr: Path, sequence: str, other_parents: Mapping[int, str]) -> list[HhrHit]:
    """Hits of a result file. Those that are no chains of the PDB are found in no list of chains."""
    hits = read_hhr(hhr, sequence, other_parents)
    if hits and not any(hit.entry_id for hit in hits):
        raise InputError(
            f"{hhr}: no hit is named <entry>_<chain>, the first is {hits[0].name!r}. Search a "
            "database of PDB chains."
        )
    return hits
