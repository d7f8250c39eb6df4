"""Lists of chains, and packed shards, as sources of another list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc

from scalefold.chains.candidates import Candidate
from scalefold.raw.chains import entry_of, read_chains
from scalefold.shards.reader import ShardReader
from scalefold.shards.schema import shard_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.template_store import TemplateStore


def read_list(path: Path) -> Iterator[Candidate]:
    """Give the samples of a list of chains, with their clusters; raises as `read_chains`."""
    samples = (row for row in read_chains(path) if row.split != "template")
    return (Candidate(row.chain_key, cluster=row.cluster_id) for row in samples)


def read_shards(folder: Path) -> Iterator[Candidate]:
    """Give the chains of a packed folder, of every split, with all that their structures say.

    Raises
    ------
    InputError
        A shard is missing, damaged, or not of this folder.
    """
    index = ShardReader(folder).index
    index = index.filter(pc.equal(index["origin"], "experimental"))
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
