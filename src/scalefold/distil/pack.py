"""Some predictions to the shards of one bucket: chains with their alignments, without templates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from scalefold.config.schema import Config
from scalefold.distil.candidates import BestModel, PredictionRow, Verdict, judge, read_prediction
from scalefold.errors import InputError
from scalefold.predict.targets import fasta_targets
from scalefold.raw.fasta import FastaRecord
from scalefold.raw.mmcif import read_entry
from scalefold.shards.hit_codec import encode_hits, encode_located
from scalefold.shards.records import ChainRecord, MsaRecord
from scalefold.shards.schema import INDEX_FILE, shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import ShardFacts, write_shard

KEY_PREFIX = "distilled_"
"""Prefix of the chain keys: no entry of the PDB has such a name."""
METHOD = "prediction"


@dataclass(frozen=True)
class Bucket:
    """What was packed.

    Attributes
    ----------
    rows : tuple of dict
        Rows of the index, of those that are kept.
    num_alone : int
        Chains whose alignment is their sequence alone.
    """

    verdicts: tuple[Verdict, ...]
    rows: tuple[dict[str, Any], ...]
    files: tuple[ShardFacts, ...]
    num_alone: int


def pack_bucket(
    numbered: tuple[int, Sequence[PredictionRow]],
    config: Config,
    alignments: Path | None,
    shards: Path,
    out: Path,
) -> Bucket:
    """Judge candidates, and write chain, msa, hits and templates of those that are kept.

    Parameters
    ----------
    numbered : (int, sequence of PredictionRow)
        The bucket's number, and what is in it.
    config : Config
        ``distillation``, ``features.distilled`` and ``shards`` are used.
    alignments : Path or None
        As for ``scalefold predict``; None: each sequence is its whole alignment.

    Raises
    ------
    InputError
        There is no room, or ``shards`` cannot be read.
    """
    bucket, candidates = numbered
    known = _known(shards)
    verdicts: list[Verdict] = []
    rows: list[dict[str, Any]] = []
    num_alone = 0
    compression = config.shards.compression
    with (
        write_shard(out / shard_file("chain", bucket), "chain", compression) as chain_shard,
        write_shard(out / shard_file("msa", bucket), "msa", compression) as msa_shard,
        write_shard(out / shard_file("hits", bucket), "hits", compression) as hits_shard,
        write_shard(out / shard_file("templates", bucket), "templates", compression) as templates,
    ):
        for candidate in candidates:
            verdict, chain, msa = _made(candidate, config, alignments, known)
            verdicts.append(verdict)
            if chain is None or msa is None:
                continue
            number = chain_shard.add(chain)
            msa_shard.add(msa)
            hits_shard.add_batch(encode_hits(chain.seq_id, []))
            templates.add_batch(encode_located(chain.seq_id, [], {}))
            rows.append(_index_row(chain, bucket, number))
            num_alone += len(msa.msa) == 1
    writers = (chain_shard, msa_shard, hits_shard, templates)
    files = tuple(writer.facts for writer in writers)
    return Bucket(tuple(verdicts), tuple(rows), files, num_alone)


def _known(shards: Path) -> frozenset[bytes]:
    """Sequences of the chains that are trained on or held out."""
    index = ShardFile(shards / INDEX_FILE, "index").table()
    used = index.filter(pc.not_equal(index["split"], "template"))
    return frozenset(used["seq_id"].to_pylist())


def _made(
    candidate: PredictionRow, config: Config, alignments: Path | None, known: frozenset[bytes]
) -> tuple[Verdict, ChainRecord | None, MsaRecord | None]:
    """What becomes of a candidate, and its rows if it is kept."""
    verdict = Verdict(candidate.name)
    if candidate.problem:
        return verdict.refused("not predicted", candidate.problem), None, None
    try:
        prediction = read_prediction(candidate)
        chain = _chain(candidate.name, prediction)
    except InputError as error:
        return verdict.refused("structure", str(error)), None, None
    verdict = judge(candidate.name, prediction, known=chain.seq_id in known, config=config)
    if verdict.fate != "kept":
        return verdict, None, None
    record = FastaRecord(candidate.name, prediction.sequence)
    (target,) = fasta_targets([record], alignments, config.shards)
    try:
        # An alignment is found by the sequence of the chain, which has no rare letters: U is C.
        msa = replace(target.read().msa, seq_id=chain.seq_id)
    except (InputError, OSError) as error:
        return verdict.refused("alignment", str(error)), None, None
    verdict = replace(verdict, alignment_rows=msa.num_seq_full)
    least = config.distillation.min_alignment_rows
    if msa.num_seq_full < least:
        reason = f"distillation.min_alignment_rows is {least}"
        return verdict.refused("alignment", reason), None, None
    return verdict, chain, msa


def _chain(name: str, prediction: BestModel) -> ChainRecord:
    """Read the structure.

    Raises
    ------
    InputError
        It is missing, damaged, or of another sequence.
    """
    (chain,) = read_entry(prediction.structure).chains
    record = ChainRecord(
        chain_key=f"{KEY_PREFIX}{name}",
        label_asym_id=chain.label_asym_id,
        auth_asym_id=chain.auth_asym_id,
        seq_id=b"",
        method=METHOD,
        origin="distilled",
        aatype=chain.aatype,
        positions=chain.positions,
        atom_mask=chain.atom_mask,
        confidence=prediction.plddt,
    )
    if len(record) != len(prediction.sequence):
        raise InputError(
            f"{prediction.structure}: {len(record)} residues, and the record beside it says "
            f"{len(prediction.sequence)}. Delete the folder and predict again"
        )
    return replace(record, seq_id=hashlib.sha256(record.sequence.encode()).digest())


def _index_row(chain: ChainRecord, bucket: int, number: int) -> dict[str, Any]:
    return {
        "chain_key": chain.chain_key,
        "split": "train",
        "origin": chain.origin,
        "seq_id": chain.seq_id,
        "length": len(chain),
        "chain_shard": bucket,
        "chain_row": number,
        "msa_shard": bucket,
        "msa_row": number,
        "release_date": None,
        "resolution": None,
        "cluster_id": None,
        "cluster_size": 1,  # of its own
        "max_single_residue_fraction": float(np.bincount(chain.aatype).max() / len(chain)),
    }
