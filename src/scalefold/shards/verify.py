"""Check a shard folder: every hash, and that its files agree with each other."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from scalefold.errors import ChecksumError, InputError
from scalefold.io.atomic import TEMPORARY_MARK
from scalefold.shards.codec import decode_chain, decode_msa
from scalefold.shards.hit_codec import (
    PackedHits,
    decode_former_templates,
    decode_located,
    template_hits,
)
from scalefold.shards.manifest import Manifest
from scalefold.shards.records import TemplateHit
from scalefold.shards.schema import INDEX_FILE, SCHEMAS, bucket_file, shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import check_summary

_AT_A_TIME: Final = 1000
"""Rows of the index that are Python's objects at the same time."""
_REFERENCES: Final = (
    *("chain_key", "seq_id", "length"),
    *("chain_shard", "chain_row", "msa_shard", "msa_row"),
)
"""Columns of the index that lead to rows, or say what they hold."""
_FIX: Final = "Files of two runs may be mixed: pack again."


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the file, and what is wrong with it and how to fix it."""

    file: str
    message: str


def verify(folder: Path) -> list[Problem]:
    """Check the manifest, every file's hash, every row's hash, and all references.

    Everything is read. All problems are listed, not only the first.

    Returns
    -------
    list of Problem
        Empty if the folder is sound.

    Raises
    ------
    InputError
        There is no such folder, or it has no readable manifest.
    """
    manifest = Manifest.read(folder)
    problems: list[Problem] = []
    unread: set[str] = set()
    for facts in manifest.files:
        try:
            manifest.check_bytes(folder, facts.file)
        except InputError as error:
            problems.append(Problem(facts.file, str(error)))
            if not isinstance(error, ChecksumError):  # of a damaged file some rows may be sound
                unread.add(facts.file)
    problems += _summaries(folder, manifest)
    index = _index(folder, problems)
    sound = _SoundRows(folder, set(index["chain_key"].to_pylist()))
    for facts in manifest.files:  # by name: chains come first, templates last
        family, bucket = bucket_file(facts.file) or ("", 0)
        if family not in SCHEMAS or facts.file in unread:
            continue
        for row, batch in _rows(folder, facts.file, family, facts.rows, problems):
            messages = sound.add(family, (bucket, row), batch)
            problems += [Problem(facts.file, f"row {row}{message}") for message in messages]
    problems += _references(index, sound)
    return problems


def leftovers(folder: Path) -> list[Path]:
    """Return temporary files of writers that were killed, or still write; nothing reads them."""
    return sorted(folder.glob(f"*{TEMPORARY_MARK}*"))


def stale(folder: Path) -> list[Path]:
    """Return shards of another list of chains or number of buckets; nothing reads them."""
    known = {facts.file for facts in Manifest.read(folder).files}
    return sorted(path for path in folder.glob("*.arrow") if path.name not in known)


class _SoundRows:
    """What cross references need to know of rows: bucket and row -> facts."""

    def __init__(self, folder: Path, keys: Collection[str]) -> None:
        self._folder, self._keys = folder, keys
        self._lengths: dict[str, int] = {}
        self._hits: dict[int, ShardFile | None] = {}
        self.chains: dict[tuple[int, int], tuple[str, bytes, int]] = {}
        self.alignments: dict[tuple[int, int], tuple[bytes, int]] = {}

    def add(self, family: str, place: tuple[int, int], batch: pa.RecordBatch) -> Iterator[str]:
        """Take a row whose own hash is right, and say what else is wrong with it."""
        if family == "chain":
            chain = decode_chain(batch)
            self.chains[place] = (chain.chain_key, chain.seq_id, len(chain))
            self._lengths[chain.chain_key] = len(chain)
            if hashlib.sha256(chain.sequence.encode()).digest() != chain.seq_id:
                yield (
                    f", chain {chain.chain_key}: seq_id is not its sequence's. Pack its bucket "
                    "again."
                )
        elif family == "msa":
            msa = decode_msa(batch)
            self.alignments[place] = (msa.seq_id, msa.msa.shape[1])
            if "templates" in batch.schema.names:
                yield from self._check(decode_former_templates(batch), msa.msa.shape[1])
        elif family == "templates" and place in self.alignments:
            yield from self._check_located(place, batch)

    def _check_located(self, place: tuple[int, int], batch: pa.RecordBatch) -> Iterator[str]:
        packed = self._row_of_hits(place)
        if packed is None:
            return
        seq_id, num_res = self.alignments[place]
        if {seq_id} != {row.column("seq_id")[0].as_py() for row in (batch, packed)}:
            yield f": alignment, hits and templates are of different sequences. {_FIX}"
            return
        hits, located = PackedHits(packed), decode_located(batch)
        if located and not 0 <= min(located) <= max(located) < len(hits):
            yield f": hits up to number {max(located)} are located, there are {len(hits)}. {_FIX}"
            return
        yield from self._check(template_hits(hits, located), num_res)

    def _row_of_hits(self, place: tuple[int, int]) -> pa.RecordBatch | None:
        """Return a row of hits; of one that cannot be read, its own file tells."""
        bucket, row = place
        with contextlib.suppress(InputError):
            if bucket not in self._hits:
                self._hits[bucket] = None
                self._hits[bucket] = ShardFile(self._folder / shard_file("hits", bucket), "hits")
            file = self._hits[bucket]
            return None if file is None else file.row(row)
        return None

    def _check(self, templates: Iterable[TemplateHit], num_res: int) -> Iterator[str]:
        for hit in templates:
            last_q, last_t = int(hit.q_idx.max(initial=-1)), int(hit.t_idx.max(initial=-1))
            if hit.chain_key not in self._keys:
                yield f": template {hit.chain_key} is not in the index. {_FIX}"
            elif last_q >= num_res or last_t >= self._lengths.get(hit.chain_key, last_t + 1):
                yield (
                    f": hit of template {hit.chain_key} reaches residues {last_q} and {last_t} "
                    f"(from 0), query and template have {num_res} and "
                    f"{self._lengths.get(hit.chain_key, 'an unknown number')}. {_FIX}"
                )


def _summaries(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    for facts in manifest.files:
        if facts.file.startswith(("chain-", "msa-")):
            try:
                check_summary(folder, facts)
            except InputError as error:
                yield Problem(Path(facts.file).with_suffix(".json").name, str(error))


def _index(folder: Path, problems: list[Problem]) -> pa.Table:
    try:
        return ShardFile(folder / INDEX_FILE, "index").table()
    except InputError as error:
        if not any(problem.file == INDEX_FILE for problem in problems):
            problems.append(Problem(INDEX_FILE, str(error)))
        return SCHEMAS["index"].empty_table()


def _rows(
    folder: Path, name: str, family: str, num_rows: int, problems: list[Problem]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the sound rows of a shard; what is wrong with others goes to the problems."""
    try:
        file = ShardFile(folder / name, family)
    except InputError as error:
        problems.append(Problem(name, str(error)))
        return
    if file.num_rows != num_rows:
        problems.append(
            Problem(name, f"has {file.num_rows} rows, the manifest states {num_rows}. Pack again.")
        )
    for row in range(file.num_rows):
        try:
            batch = file.row(row)
        except InputError as error:
            problems.append(Problem(name, str(error)))
            continue
        yield row, batch


def _references(index: pa.Table, sound: _SoundRows) -> Iterator[Problem]:
    # Not the dates: of a damaged index, Python has no such day.
    batches = index.select(_REFERENCES).to_batches(_AT_A_TIME)
    for facts in (row for batch in batches for row in batch.to_pylist()):
        key, of_alignment = facts["chain_key"], (facts["seq_id"], facts["length"])
        for family, rows, expected in (
            ("chain", sound.chains, (key, *of_alignment)),
            ("msa", sound.alignments, of_alignment),
        ):
            bucket, row = facts[f"{family}_shard"], facts[f"{family}_row"]
            if bucket is None:
                continue
            file, found = shard_file(family, bucket), rows.get((bucket, row))
            if found is None:
                yield Problem(INDEX_FILE, f"{key}: no sound row {row} in {file}.")
            elif found != expected:
                yield Problem(
                    INDEX_FILE,
                    f"{key}: its row holds {_in_words(found)} in {file}, expected "
                    f"{_in_words(expected)}. {_FIX}",
                )


def _in_words(row: Iterable[str | bytes | int]) -> str:
    """Chain key, sequence and length; of an alignment without the first."""
    return ", ".join(fact.hex()[:12] if isinstance(fact, bytes) else str(fact) for fact in row)
