"""First stage of packing: structures of one bucket to a chain shard."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.progress import track

from scalefold.chem.residues import CA, RESTYPES_WITH_X
from scalefold.config.identity import packing_hash, packing_settings
from scalefold.config.schema import Config
from scalefold.errors import InputError, UnreadableError
from scalefold.fetch.fetched import FetchRecord, check_raw
from scalefold.io.atomic import make_folder
from scalefold.raw.chains import ChainRow, read_chains
from scalefold.raw.compressed import RAISE_LIMIT
from scalefold.raw.mmcif import Chain, read_entry
from scalefold.raw.raw_folder import mmcif_path
from scalefold.raw.rejected import Rejected, cause_first
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_chains
from scalefold.shards.records import ChainRecord
from scalefold.shards.schema import FAMILY_VERSIONS, shard_file
from scalefold.shards.source_files import SourceFile
from scalefold.shards.summary import BucketHead, ChainFacts, ChainSummary, write_summary
from scalefold.shards.writer import write_shard

STAGE: Final = "structure"


def pack_structures(
    config: Config, raw: Path, out: Path, bucket: int, console: Console | None = None
) -> ChainSummary:
    """Write ``chain-<bucket>.arrow`` and its summary: all chains of the bucket, of every split.

    A chain that cannot be read, has all its atoms in one place, or whose file is not what fetch
    got, is set aside with its reason, the others go on. The same input gives the same bytes.

    Parameters
    ----------
    config
        ``data.chains``, ``data.buckets``, ``data.mirrors.mmcif_path`` and
        ``shards.compression`` are used.
    raw
        Raw folder, as ``scalefold fetch`` lays it out.
    out
        Shard folder; made if need be.

    Raises
    ------
    InputError
        The raw folder, the table of chains or a file that was fetched is missing, or there is no
        room.
    """
    check_raw(raw)
    listed = read_chains(config.data.chains)
    config = with_bucket_count(config, out, listed)
    chains = bucket_chains(listed, bucket, config.data.num_buckets)
    like = config.data.mirrors.mmcif_paths[0]
    needed = {mmcif_path(raw, row.entry_id, like) for row in chains}
    fetched = FetchRecord(raw, needed, "structures", bucket)
    fetched.check_presence()
    make_folder(out)
    facts: list[ChainFacts] = []
    rejected: list[Rejected] = []
    sources: list[SourceFile] = []
    entries = [(entry, list(rows)) for entry, rows in groupby(chains, lambda row: row.entry_id)]
    with write_shard(
        out / shard_file("chain", bucket), "chain", config.shards.compression
    ) as shard:
        for entry_id, rows in track(
            entries,
            description=f"structures, bucket {bucket}",
            console=console or Console(stderr=True),
            disable=not entries,
        ):
            path = mmcif_path(raw, entry_id, like)
            try:
                entry = read_entry(path, config.data.max_structure_bytes, RAISE_LIMIT)
                source = SourceFile.of(raw, path)
                fetched.check_content(path, source.bytes, source.sha256)
            except UnreadableError:  # its owner can fix that
                raise
            except InputError as error:
                reason = cause_first(str(error))
                rejected.extend(Rejected(row.chain_key, STAGE, reason) for row in rows)
                continue
            sources.append(source)
            for row in rows:
                try:
                    chain = entry.chain(row.chain_key)
                    _check_extent(chain)
                    record = _record(chain, row)
                    facts.append(_facts(record, shard.add(record), chain.other_parents))
                except InputError as error:
                    reason = cause_first(f"{path}: {error}")
                    rejected.append(Rejected(row.chain_key, STAGE, reason))
    head = BucketHead(
        family="chain",
        bucket=bucket,
        schema_version=FAMILY_VERSIONS["chain"],
        config_hash=packing_hash(config),
        settings=packing_settings(config),
        shard=shard.facts,
        rejected=tuple(rejected),
        sources=tuple(sources),
    )
    summary = ChainSummary(head, tuple(facts))
    write_summary(out, summary)
    return summary


def _check_extent(chain: Chain) -> None:
    """Refuse placeholders, such as (0, 0, 0) for all atoms: no prediction can be compared with
    them.
    """
    alphas = chain.positions[chain.atom_mask[:, CA], CA]
    if len(alphas) > 1 and (alphas == alphas[0]).all():
        place = ", ".join(f"{axis:g}" for axis in alphas[0])
        raise InputError(
            f"chain {chain.chain_key} has the Cα atoms of its {len(alphas)} observed residues all "
            f"at ({place}): these are no coordinates. Use another file of it (data.mirrors.mmcif), "
            "or leave it out"
        )


def _record(chain: Chain, row: ChainRow) -> ChainRecord:
    # The sequence that the record itself states: rare letters are X in it.
    sequence = "".join(RESTYPES_WITH_X[code] for code in chain.aatype)
    return ChainRecord(
        chain_key=chain.chain_key,
        label_asym_id=chain.label_asym_id,
        auth_asym_id=chain.auth_asym_id,
        seq_id=hashlib.sha256(sequence.encode()).digest(),
        method=chain.method,
        origin="experimental",
        aatype=chain.aatype,
        positions=chain.positions,
        atom_mask=chain.atom_mask,
        resolution=chain.resolution,
        release_date=chain.release_date,
        cluster_id=row.cluster_id,
    )


def _facts(record: ChainRecord, number: int, other_parents: Mapping[int, str]) -> ChainFacts:
    return ChainFacts(
        chain_key=record.chain_key,
        row=number,
        seq_id=record.seq_id.hex(),
        origin=record.origin,
        length=len(record),
        resolution=record.resolution,
        release_date=None if record.release_date is None else record.release_date.isoformat(),
        cluster_id=record.cluster_id,
        max_single_residue_fraction=float(np.bincount(record.aatype).max() / len(record)),
        other_parents={str(i): letters for i, letters in other_parents.items()},
    )
