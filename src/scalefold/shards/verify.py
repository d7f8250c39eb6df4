"""Check a shard folder: every hash, and that its files agree with each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from scalefold.errors import ChecksumError, InputError
from scalefold.io.atomic import TEMPORARY_MARK
from scalefold.shards.codec import decode_chain, decode_msa
from scalefold.shards.manifest import Manifest
from scalefold.shards.records import MsaRecord
from scalefold.shards.schema import INDEX_FILE, SCHEMAS, shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import check_summary


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the file, and what is wrong with it and how to mend it."""

    file: str
    message: str


@dataclass(frozen=True)
class _Alignment:
    """What cross references need to know of an msa row."""

    seq_id: bytes
    num_res: int
    templates: tuple[tuple[str, int, int], ...]  # chain key, largest q_idx, largest t_idx


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
    chains: dict[tuple[int, int], tuple[str, bytes, int]] = {}
    alignments: dict[tuple[int, int], _Alignment] = {}
    for facts in manifest.files:
        family, _, number = facts.file.removesuffix(".arrow").partition("-")
        if family not in SCHEMAS or not number.isdigit() or facts.file in unread:
            continue
        bucket = int(number)
        for row, batch in _rows(folder, facts.file, family, facts.rows, problems):
            if family == "chain":
                chain = decode_chain(batch)
                chains[bucket, row] = (chain.chain_key, chain.seq_id, len(chain))
                if hashlib.sha256(chain.sequence.encode()).digest() != chain.seq_id:
                    message = f"row {row}, chain {chain.chain_key}: seq_id is not its sequence's"
                    problems.append(Problem(facts.file, f"{message}. Pack its bucket again."))
            else:
                alignments[bucket, row] = _facts(decode_msa(batch))
    problems += _references(index, chains, alignments)
    return problems


def leftovers(folder: Path) -> list[Path]:
    """Return temporary files of writers that were killed, or still write; nothing reads them."""
    return sorted(folder.glob(f"*{TEMPORARY_MARK}*"))


def stale(folder: Path) -> list[Path]:
    """Return shards of another list of chains or number of buckets; nothing reads them."""
    known = {facts.file for facts in Manifest.read(folder).files}
    return sorted(path for path in folder.glob("*.arrow") if path.name not in known)


def _facts(msa: MsaRecord) -> _Alignment:
    return _Alignment(
        seq_id=msa.seq_id,
        num_res=msa.msa.shape[1],
        templates=tuple(
            (hit.chain_key, int(hit.q_idx.max(initial=-1)), int(hit.t_idx.max(initial=-1)))
            for hit in msa.templates
        ),
    )


def _summaries(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    for facts in manifest.files:
        if facts.file.startswith(("chain-", "msa-")):
            try:
                check_summary(folder, facts)
            except InputError as error:
                yield Problem(Path(facts.file).with_suffix(".json").name, str(error))


def _index(folder: Path, problems: list[Problem]) -> list[dict[str, Any]]:
    try:
        return ShardFile(folder / INDEX_FILE, "index").table().to_pylist()
    except InputError as error:
        if not any(problem.file == INDEX_FILE for problem in problems):
            problems.append(Problem(INDEX_FILE, str(error)))
        return []


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


def _references(
    index: list[dict[str, Any]],
    chains: dict[tuple[int, int], tuple[str, bytes, int]],
    alignments: dict[tuple[int, int], _Alignment],
) -> Iterator[Problem]:
    fix = "Files of two runs may be mixed: pack again."
    lengths = {key: length for key, _, length in chains.values()}
    keys = {facts["chain_key"] for facts in index}
    for facts in index:
        key, expected = facts["chain_key"], (facts["chain_key"], facts["seq_id"], facts["length"])
        place = (facts["chain_shard"], facts["chain_row"])
        if place not in chains:
            yield Problem(
                INDEX_FILE, f"{key}: no sound row {place[1]} in {shard_file('chain', place[0])}."
            )
        elif chains[place] != expected:
            found = chains[place]
            yield Problem(
                INDEX_FILE,
                f"{key}: length {facts['length']}, sequence {facts['seq_id'].hex()[:12]}; its row "
                f"holds {found[0]}, length {found[2]}, sequence {found[1].hex()[:12]}. {fix}",
            )
        if facts["msa_shard"] is None:
            continue
        place = (facts["msa_shard"], facts["msa_row"])
        alignment = alignments.get(place)
        if alignment is None:
            yield Problem(
                INDEX_FILE, f"{key}: no sound row {place[1]} in {shard_file('msa', place[0])}."
            )
        elif (alignment.seq_id, alignment.num_res) != (facts["seq_id"], facts["length"]):
            yield Problem(
                INDEX_FILE,
                f"{key}: length {facts['length']}, sequence {facts['seq_id'].hex()[:12]}; its "
                f"alignment is of length {alignment.num_res}, sequence "
                f"{alignment.seq_id.hex()[:12]}. {fix}",
            )
    for (bucket, row), alignment in sorted(alignments.items()):
        for template, last_q, last_t in alignment.templates:
            name = shard_file("msa", bucket)
            if template not in keys:
                yield Problem(name, f"row {row}: template {template} is not in the index. {fix}")
            elif last_q >= alignment.num_res or last_t >= lengths.get(template, last_t + 1):
                yield Problem(
                    name,
                    f"row {row}: hit of template {template} reaches residues {last_q} and {last_t} "
                    f"(from 0), query and template have {alignment.num_res} and "
                    f"{lengths.get(template, 'an unknown number')}. {fix}",
                )
