"""Packed shards as a source of a list of chains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from scalefold.chains.candidates import Candidate
from scalefold.raw.chain_key import entry_of
from scalefold.shards.reader import ShardReader
from scalefold.shards.schema import bucket_file, shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.template_store import TemplateStore


def read_shards(folder: Path) -> Iterator[Candidate]:
    """Yield the chains of a packed folder that have an alignment, of every split, with all facts.

    Raises
    ------
    InputError
        A shard is missing, damaged, or not of this folder.
    """
    reader = ShardReader(folder)
    index = reader.index.filter(pc.equal(reader.index["origin"], "experimental"))
    # The index states no alignment for a chain that a later split made a template.
    index = index.filter(pc.is_in(index["seq_id"], value_set=_aligned(reader)))
    store = TemplateStore(folder, index)
    for bucket in pc.unique(index["chain_shard"]).to_pylist():
        rows = index.filter(pc.equal(index["chain_shard"], bucket)).to_pylist()
        file = ShardFile(folder / shard_file("chain", bucket), "chain")
        numbers = [row["chain_row"] for row in rows]
        columns = (file.scan(name, numbers) for name in ("label_asym_id", "method"))
        for row, label, method in zip(rows, *columns, strict=True):
            key = row["chain_key"]
            yield Candidate(
                key,
                store.sequences(entry_of(key))[key],
                label=label[0].as_py(),
                release_date=row["release_date"],
                resolution=row["resolution"],
                method=method[0].as_py() or None,
                cluster=row["cluster_id"],
            )
        file.close()


def _aligned(reader: ShardReader) -> pa.Array:
    """Sequences that have an alignment."""
    names = (facts.file for facts in reader.manifest.files)
    alignments = [name for name in names if (bucket_file(name) or ("",))[0] == "msa"]
    files = (ShardFile(reader.folder / name, "msa") for name in alignments)
    return pa.concat_arrays([part for file in files for part in file.scan("seq_id")])
