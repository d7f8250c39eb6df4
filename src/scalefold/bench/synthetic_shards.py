"""Shards of made-up chains of a stated size, for benchmarks of reading: no data set is needed.

Sizes are those of deep alignments in OpenProteinSet: rows of decreasing similarity to the query,
gaps in runs at both ends, deletions at some places, template hits over most of the query.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from scalefold.chem.residues import ATOM37_MASK, GAP
from scalefold.config.schema import FeaturesConfig
from scalefold.raw.aligned_hit import AlignedHit
from scalefold.raw.templates import Located
from scalefold.shards.hit_codec import encode_hits, encode_located
from scalefold.shards.manifest import Manifest
from scalefold.shards.records import ChainRecord, MsaRecord
from scalefold.shards.schema import INDEX_FILE, SCHEMA_VERSION, SCHEMAS, shard_file
from scalefold.shards.source_files import RawSnapshot
from scalefold.shards.writer import write_shard

_DELETION_RATE = 0.01  # of positions of an alignment
_TRAINED = datetime.date(2020, 1, 1)
_TEMPLATE = datetime.date(2010, 1, 1)


@contextlib.contextmanager
def given_or_made_up(
    shards: Path | None, *, lengths: Sequence[int], num_rows: int, num_hits: int
) -> Iterator[Path]:
    """The shards that were named, or else those of `write_synthetic_shards`, for as long."""
    if shards is not None:
        yield shards
        return
    with tempfile.TemporaryDirectory(prefix="scalefold-") as folder:
        made_up = Path(folder)
        write_synthetic_shards(made_up, lengths=lengths, num_rows=num_rows, num_hits=num_hits)
        yield made_up


def given_or_full(
    shards: Path | None, features: FeaturesConfig
) -> contextlib.AbstractContextManager[Path]:
    """The shards that were named, or else made-up ones whose samples are full: `given_or_made_up`.

    Their chains are as long as a crop, so that no residue is padding, and their alignments so deep
    that the blocks of rows that training deletes hardly ever leave too few. Training draws how many
    templates there are.
    """
    return given_or_made_up(
        shards,
        lengths=[features.crop_size] * 2,
        num_rows=10 * (features.max_msa_clusters + features.max_extra_msa),
        num_hits=features.max_templates,
    )


def write_synthetic_shards(
    folder: Path,
    *,
    lengths: Sequence[int],
    num_rows: int,
    num_hits: int,
    split: str = "train",
) -> None:
    """Write a shard folder of made-up chains.

    Parameters
    ----------
    lengths : sequence of int
        Residues of each chain; as many templates as there are hits are added.
    """
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    longest = max(lengths)
    chains = [
        _chain(generator, f"s{i:03d}_A", length, _TRAINED) for i, length in enumerate(lengths)
    ]
    templates = [_chain(generator, f"t{i:03d}_A", longest + 10, _TEMPLATE) for i in range(num_hits)]
    with write_shard(folder / shard_file("chain", 0), "chain") as chain_shard:
        for record in [*chains, *templates]:
            chain_shard.add(record)
    with (
        write_shard(folder / shard_file("msa", 0), "msa") as msa_shard,
        write_shard(folder / shard_file("hits", 0), "hits") as hits_shard,
        write_shard(folder / shard_file("templates", 0), "templates") as templates_shard,
    ):
        for record in chains:
            msa_shard.add(_alignment(generator, record, num_rows))
            hits = [_hit(generator, i, t, record) for i, t in enumerate(templates)]
            located = {i: Located(hit.chain_key) for i, hit in enumerate(hits)}
            hits_shard.add_batch(encode_hits(record.seq_id, hits))
            templates_shard.add_batch(encode_located(record.seq_id, hits, located))
    with write_shard(folder / INDEX_FILE, "index") as index:
        index.add_batch(_index(chains, templates, split))
    shards = (chain_shard, msa_shard, hits_shard, templates_shard, index)
    facts = [shard.facts for shard in shards]
    Manifest(
        schema_version=SCHEMA_VERSION,
        config_hash="synthetic",
        source=RawSnapshot.of([]),
        counts={f"chains, {split}": len(chains)},
        files=tuple(sorted(facts, key=lambda f: f.file)),
    ).write(folder)


def _index(
    chains: Sequence[ChainRecord], templates: Sequence[ChainRecord], split: str
) -> pa.RecordBatch:
    """Where each record is: those with an alignment first, as in their shard."""
    num_chains = len(chains)
    rows = [
        {
            "chain_key": record.chain_key,
            "split": split if number < num_chains else "template",
            "origin": record.origin,
            "seq_id": record.seq_id,
            "length": len(record),
            "chain_shard": 0,
            "chain_row": number,
            "msa_shard": 0 if number < num_chains else None,
            "msa_row": number if number < num_chains else None,
            "release_date": record.release_date,
            "resolution": record.resolution,
            "cluster_id": record.chain_key,
            "cluster_size": 1,
            "max_single_residue_fraction": 0.1,
        }
        for number, record in enumerate([*chains, *templates])
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMAS["index"])


def _chain(
    generator: np.random.Generator, key: str, num_res: int, date: datetime.date
) -> ChainRecord:
    aatype = generator.integers(0, 20, num_res).astype(np.uint8)
    mask = ATOM37_MASK[aatype] > 0
    # a walk of CA atoms, the residue's atoms around each
    trace = np.cumsum(generator.normal(scale=2.2, size=(num_res, 1, 3)), 0)
    positions = (trace + generator.normal(scale=1.5, size=(num_res, 37, 3))).astype(np.float32)
    return ChainRecord(
        chain_key=key,
        label_asym_id="A",
        auth_asym_id="A",
        seq_id=hashlib.sha256(key.encode()).digest(),
        method="synthetic",
        origin="experimental",
        aatype=aatype,
        positions=positions * mask[..., None],
        atom_mask=mask,
        resolution=2.0,
        release_date=date,
        cluster_id=key,
    )


def _hit(
    generator: np.random.Generator, rank: int, template: ChainRecord, query: ChainRecord
) -> AlignedHit:
    start = int(generator.integers(0, len(query) // 8 + 1))
    end = len(query)
    return AlignedHit(
        chain_key=template.chain_key,
        probability=99.0,
        sum_probs=300.0 - rank,
        query_start=start,
        template_start=start + 5,
        query_aligned=query.sequence[start:end],
        template_aligned=template.sequence[start + 5 : end + 5],
    )


def _alignment(generator: np.random.Generator, chain: ChainRecord, num_rows: int) -> MsaRecord:
    width = len(chain)
    identity = np.linspace(0.9, 0.2, num_rows)[:, None]
    other = generator.integers(0, 20, (num_rows, width), np.uint8)
    kept = generator.random((num_rows, width), np.float32) < identity
    msa = np.where(kept, chain.aatype, other)
    left, right = generator.integers(0, width // 4 + 1, (2, num_rows, 1))
    column = np.arange(width)
    msa[(column < left) | (column >= width - right)] = GAP
    msa[0] = chain.aatype
    deleted = generator.random((num_rows, width), np.float32) < _DELETION_RATE
    deleted[0] = False
    row, del_col = deleted.nonzero()
    return MsaRecord(
        seq_id=chain.seq_id,
        msa=msa,
        del_ptr=np.searchsorted(row, np.arange(num_rows + 1)).astype(np.uint32),
        del_col=del_col.astype(np.uint16),
        del_val=generator.integers(1, 20, len(row)).astype(np.uint16),
        row_source=np.zeros(num_rows, np.uint8),
        profile=np.stack([(msa == s).mean(0) for s in range(22)], -1).astype(np.float32),
        num_seq_full=num_rows,
    )
