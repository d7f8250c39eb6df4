"""Second stage of packing: alignments and template hits of one bucket to an msa shard."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import track

from scalefold.config.data import DataConfig
from scalefold.config.identity import packing_hash, packing_settings
from scalefold.config.schema import Config
from scalefold.errors import InputError, UnreadableError
from scalefold.raw.alignments import Alignment, read_folder
from scalefold.raw.chains import Rejected, alignment_folder, entry_of, read_chains
from scalefold.raw.fetched import FetchRecord, check_raw
from scalefold.raw.hhr import TemplateHit as RawHit
from scalefold.raw.hhr import read_hhr
from scalefold.raw.templates import best_first, locate, sequence_reason
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_chains, filled_buckets
from scalefold.shards.manifest import SourceFile
from scalefold.shards.records import MsaRecord, TemplateHit
from scalefold.shards.schema import SCHEMA_VERSION, shard_file
from scalefold.shards.summary import (
    AlignmentFacts,
    BucketHead,
    ChainFacts,
    ChainSummary,
    MsaSummary,
    read_chain_summary,
    structures_hash,
    write_summary,
)
from scalefold.shards.template_store import TemplateStore
from scalefold.shards.writer import write_shard

STAGE: Final = "alignment"
STAYS: Final = "The structure stays as a template."
"""Ends the reason of a chain whose structure is good and whose alignment is not."""
TEMPLATE_OUTCOMES: Final = (
    "kept",
    "excluded by sequence",
    "of the same entry",
    "structure not packed",
    "too new, or of unknown date",
    "not found in its structure",
    "beyond max_template_hits",
)
"""Outcome of a template hit."""


def pack_alignments(
    config: Config, raw: Path, out: Path, bucket: int, console: Console | None = None
) -> MsaSummary:
    """Write ``msa-<bucket>.arrow`` and its summary: one row for each sequence of the bucket.

    Chains of one sequence (and origin) share a row. It is made from the files of the first of
    them, by chain key, that has usable ones; a chain whose files are tried and found bad, or not
    what fetch got, is set aside. Chains without any alignment files are left to
    :func:`~.pack_index.pack_index`, which knows the alignments of all buckets.

    Of each alignment the first rows are taken, as many as ``shards.max_rows`` says. They are merged
    in the order of ``data.alignments`` and deduplicated; the profile is that of the whole merged
    alignment, of which at most ``shards.max_rows.together`` rows are stored, of each file the same
    share.
    Template hits are filtered by sequence, located in the chains of the chain shards, and the best
    ``shards.max_template_hits`` by ``sum_probs`` are kept. Those that were released after the last
    chain of the sequence serve none and do not count among them: the best hits of an old query may
    all be newer than it. Nor do hits of the same entry: they are dropped, or, where chains of other
    entries share the row, kept besides for those.

    Parameters
    ----------
    config
        Sections ``data`` and ``shards``.
    raw
        Raw folder, as ``scalefold fetch`` lays it out.
    out
        Shard folder with the chain shards of *all* buckets.
    bucket
        Number of the bucket.
    console
        Where progress is shown; default: standard error.

    Raises
    ------
    InputError
        The raw folder, the table of chains, a chain shard or a file that was fetched is missing, a
        chain shard was packed with other settings, or there is no room.
    """
    check_raw(raw)
    chains = read_chains(config.data.chains)
    config = with_bucket_count(config, out, chains)
    summaries = {
        number: read_chain_summary(out, number, config)
        for number in filled_buckets(chains, config.data.num_buckets)
    }
    wanted = {
        row.chain_key
        for row in bucket_chains(chains, bucket, config.data.num_buckets)
        if row.split != "template"
    }
    files = [path for key in sorted(wanted) for path in _files(config.data, raw, key)]
    fetched = FetchRecord(raw, files, "alignments", bucket)
    fetched.check_presence()
    own_rows = summaries[bucket].rows if bucket in summaries else ()
    groups: dict[tuple[str, str], list[ChainFacts]] = defaultdict(list)
    for facts in sorted(own_rows, key=lambda facts: facts.chain_key):
        if facts.chain_key in wanted:
            groups[facts.seq_id, facts.origin].append(facts)

    newest = _newest_release(summaries.values())
    packer = _Packer(config, raw, fetched, TemplateStore(out, list(summaries.values())))
    rows: list[AlignmentFacts] = []
    with write_shard(out / shard_file("msa", bucket), "msa", config.shards.compression) as shard:
        for (seq_id, origin), members in track(
            groups.items(),
            description=f"alignments, bucket {bucket}",
            console=console or Console(stderr=True),
            disable=not groups,
        ):
            for facts in members:
                entries = {entry_of(other.chain_key) for other in members}
                packed = packer.record(facts, entries, newest.get((seq_id, origin)))
                if packed is not None:
                    record, stored = packed
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
        schema_version=SCHEMA_VERSION,
        config_hash=packing_hash(config),
        settings=packing_settings(config),
        shard=shard.facts,
        rejected=tuple(packer.rejected),
        sources=tuple(packer.sources),
    )
    counts = {outcome: packer.outcomes[outcome] for outcome in TEMPLATE_OUTCOMES}
    summary = MsaSummary(
        head,
        tuple(rows),
        counts,
        structures_hash(summaries.values()),
        chains=tuple(sorted(wanted)),
    )
    write_summary(out, summary)
    return summary


def _newest_release(summaries: Iterable[ChainSummary]) -> dict[tuple[str, str], datetime.date]:
    """Return (sequence, origin) -> the last release of a chain of it, where any is known."""
    newest: dict[tuple[str, str], datetime.date] = {}
    for facts in itertools.chain.from_iterable(summary.rows for summary in summaries):
        key, date = (facts.seq_id, facts.origin), facts.date
        if date is not None:
            newest[key] = max(newest.get(key, date), date)
    return newest


def _files(data: DataConfig, raw: Path, chain_key: str) -> list[Path]:
    """Return the files that a chain may have: alignments, then template hits."""
    folder = alignment_folder(raw, chain_key)
    files = [folder / "a3m" / f"{name}.a3m" for name in data.alignments]
    if data.template_hits is not None:
        files.append(folder / "hhr" / f"{data.template_hits}.hhr")
    return files


class _Query(NamedTuple):
    """Facts of the chains that share an alignment, which template hits are filtered by.

    Attributes
    ----------
    sequence : str
    other_parents : mapping
        Of its modified residues, see `scalefold.raw.mmcif.Chain`.
    entries : set of str
        Of those in this bucket.
    newest : date or None
        Last release of all, ``None`` where none is known.
    """

    sequence: str
    other_parents: Mapping[int, str]
    entries: set[str]
    newest: datetime.date | None


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
        self.outcomes: Counter[str] = Counter()

    def record(
        self, facts: ChainFacts, entries: set[str], newest: datetime.date | None
    ) -> tuple[MsaRecord, Alignment] | None:
        """Return what to store of a chain, and that as an alignment.

        ``None`` if it has no files or unusable ones.

        ``entries`` are those of the bucket's chains that will share it, ``newest`` is the last
        release of all that may.
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
            raw_hits = [] if hhr is None else read_hhr(hhr, sequence, others)
            sources = [SourceFile.of(self._raw, path) for path in files]
            for path, source in zip(files, sources, strict=True):
                self._fetched.check_content(path, source.bytes, source.sha256)
        except UnreadableError:  # its owner can mend that
            raise
        except InputError as error:
            reason = f"{str(error).rstrip('.')}. {STAYS}"
            self.rejected.append(Rejected(facts.chain_key, STAGE, reason))
            return None
        self.sources += sources
        stored = full.share(self._shards.max_merged_rows, self._data.alignments)
        templates = self._templates(raw_hits, _Query(sequence, others, entries, newest))
        seq_id = bytes.fromhex(facts.seq_id)
        return MsaRecord.of(seq_id, full, stored, templates), stored

    def _templates(self, raw_hits: list[RawHit], query: _Query) -> tuple[TemplateHit, ...]:
        """Return the hits to keep, by falling sum of probabilities."""
        kept: list[TemplateHit] = []
        num_counted = 0
        for hit in best_first(raw_hits):
            is_own = hit.entry_id in query.entries
            if not is_own and num_counted == self._shards.max_template_hits:
                self.outcomes["beyond max_template_hits"] += 1
                continue
            outcome, template = self._try(hit, query)
            self.outcomes[outcome] += 1
            if template is not None:
                kept.append(template)
                num_counted += not is_own
        return tuple(kept)

    def _try(self, hit: RawHit, query: _Query) -> tuple[str, TemplateHit | None]:
        """Return what becomes of a hit, and the located hit if it can be used."""
        if query.entries == {hit.entry_id}:
            return "of the same entry", None
        if sequence_reason(hit, query.sequence, query.other_parents) is not None:
            return "excluded by sequence", None
        candidates = self._store.sequences(hit.entry_id)
        if not candidates:
            return "structure not packed", None
        released = self._store.release_date(hit.entry_id)
        if query.newest is None or released is None or released > query.newest:
            return "too new, or of unknown date", None
        located = locate(hit, candidates)
        if isinstance(located, str):
            return "not found in its structure", None
        template = TemplateHit(
            chain_key=located.chain_key,
            sum_probs=located.sum_probs,
            prob=located.probability,
            q_idx=located.q_idx,
            t_idx=located.t_idx,
        )
        return "kept", template
