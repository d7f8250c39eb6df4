"""Read samples from a shard folder.

A reader may be made before processes are forked or sent to another process: files are opened where
and when they are first read.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from scalefold.errors import InputError
from scalefold.raw.chain_key import entry_of
from scalefold.shards.codec import decode_chain, decode_msa
from scalefold.shards.hit_codec import (
    PackedHits,
    decode_former_templates,
    decode_located,
    template_hits,
)
from scalefold.shards.manifest import Manifest
from scalefold.shards.records import (
    ChainRecord,
    MsaRecord,
    PartialChain,
    Sample,
    Split,
    TemplateHit,
)
from scalefold.shards.repack_hint import repack_hint
from scalefold.shards.schema import FORMER_VERSION, INDEX_FILE, shard_file
from scalefold.shards.shard_file import ShardFile


class ShardReader:
    """Samples and chains of a shard folder, by chain key.

    Attributes
    ----------
    index : pyarrow.Table
        One row a chain, sorted by chain key (``schema.SCHEMAS["index"]``).
    manifest : Manifest
        Files, counts and provenance.

    Raises
    ------
    InputError
        The folder or a file of it is missing, or of another schema version.
    ChecksumError
        The index is not the one that was written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self.manifest.check_bytes(folder, INDEX_FILE)
        self.index: pa.Table = ShardFile(folder / INDEX_FILE, "index").table().combine_chunks()
        self._keys = self.index["chain_key"]
        if pc.any(pc.less_equal(self._keys[1:], self._keys[:-1])).as_py():
            raise InputError(
                f"{folder / INDEX_FILE}: chain keys are not unique and sorted. Run "
                "`scalefold pack` again."
            )
        self._columns = dict(zip(self.index.column_names, self.index.columns, strict=True))
        self._check_references()
        self._files: dict[str, ShardFile] = {}
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[type[ShardReader], tuple[Path]]:
        """Send only the folder to another process."""
        return ShardReader, (self.folder,)

    def __len__(self) -> int:
        """Return the number of chains."""
        return self.index.num_rows

    def __contains__(self, chain_key: object) -> bool:
        """Return whether the folder has this chain."""
        return isinstance(chain_key, str) and self._find(chain_key) is not None

    def keys(self, split: Split | None = None) -> list[str]:
        """Return the chain keys of a split (``None``: of all), sorted."""
        keys = self.index["chain_key"]
        if split is not None:
            keys = keys.filter(pc.equal(self.index["split"], split))
        return keys.to_pylist()

    def chain(self, chain_key: str) -> ChainRecord:
        """Return a chain.

        Raises
        ------
        InputError
            There is no such chain.
        ChecksumError
            Its row is damaged.
        """
        facts = self._facts(chain_key)
        file = self._open("chain", facts["chain_shard"])
        record = decode_chain(file.row(facts["chain_row"], chain_key))
        if record.chain_key != chain_key:
            raise InputError(
                f"{file.path}, row {facts['chain_row']}: holds chain {record.chain_key}, the index "
                f"says {chain_key}. Files of two runs are mixed: run `scalefold pack` again."
            )
        return record

    def msa(self, chain_key: str) -> MsaRecord:
        """Return a chain's alignment; raises as :meth:`chain`, and if the chain has none."""
        return decode_msa(self._aligned("msa", chain_key))

    def templates(self, chain_key: str) -> tuple[TemplateHit, ...]:
        """Return the template hits of a chain's alignment by descending ``sum_probs``.

        Hits of the chain's own entry may be among them. Raises as :meth:`msa`.
        """
        if self.manifest.schema_version == FORMER_VERSION:
            return tuple(decode_former_templates(self._aligned("msa", chain_key)))
        located = decode_located(self._aligned("templates", chain_key))
        if not located:
            return ()
        return tuple(template_hits(PackedHits(self._aligned("hits", chain_key)), located))

    def sample(self, chain_key: str) -> Sample:
        """Return a chain with its alignment and the structures of its template hits.

        Hits of the chain's own entry are left out here, since one alignment can serve several
        entries. Structures of hits are read when they are first looked at, their dates come from
        the index. Raises as :meth:`msa`.
        """
        facts = self._facts(chain_key)
        msa = self.msa(chain_key)
        entry = entry_of(chain_key)
        hits = [hit for hit in self.templates(chain_key) if entry_of(hit.chain_key) != entry]
        return Sample(
            chain=self.chain(chain_key),
            msa=msa,
            templates=tuple((hit, self._unread_chain(hit.chain_key)) for hit in hits),
            split=facts["split"],
            cluster_size=facts["cluster_size"],
        )

    def _aligned(self, family: str, chain_key: str) -> pa.RecordBatch:
        """Return the row of a chain's alignment in a family."""
        facts = self._facts(chain_key)
        if facts["msa_shard"] is None:
            raise InputError(
                f"{self.folder}: chain {chain_key} has no alignment, it is in split "
                f"{facts['split']!r}. Samples are chains of the splits train and validation."
            )
        file = self._open(family, facts["msa_shard"])
        batch = file.row(facts["msa_row"], chain_key)
        seq_id = batch.column("seq_id")[0].as_py()
        if seq_id != facts["seq_id"]:
            raise InputError(
                f"{file.path}, row {facts['msa_row']}: alignment of sequence "
                f"{seq_id.hex()[:12]}, chain {chain_key} has {facts['seq_id'].hex()[:12]}. "
                "Files of two runs are mixed: run `scalefold pack` again."
            )
        return batch

    def _unread_chain(self, chain_key: str) -> ChainRecord:
        known = {"chain_key": chain_key, "release_date": self._facts(chain_key)["release_date"]}
        return PartialChain.of(known, lambda: vars(self.chain(chain_key)))

    def _find(self, chain_key: str) -> int | None:
        row = bisect_left(self._keys, chain_key, key=pa.StringScalar.as_py)
        is_there = row < len(self._keys) and self._keys[row].as_py() == chain_key
        return row if is_there else None

    def _facts(self, chain_key: str) -> _IndexRow:
        """Return the index row of a chain."""
        row = self._find(chain_key)
        if row is None:
            asked = chain_key.lower()
            alike = [key for key in self.keys() if asked in (key.lower(), entry_of(key))]
            fix = (
                f"Did you mean {alike[0]}?"
                if alike
                else "Add it to the list of chains and pack again; rejected.tsv says whether it "
                "was set aside."
            )
            raise InputError(f"{self.folder}: no chain {chain_key!r} among {len(self)}. {fix}")
        return _IndexRow(self._columns, row)

    def _open(self, family: str, bucket: int) -> ShardFile:
        if self._pid != os.getpid():
            # Maps opened before a fork are the parent's.
            self._files, self._pid = {}, os.getpid()
        name = shard_file(family, bucket)
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = ShardFile(self.folder / name, family)
        return file

    def _check_references(self) -> None:
        """Check that every file that the index names is there, and of the stated size."""
        sizes = {facts.file: facts.bytes for facts in self.manifest.files}
        of_alignments = ["msa"]
        if self.manifest.schema_version != FORMER_VERSION:
            of_alignments += ["hits", "templates"]
        for family in ("chain", *of_alignments):
            column = "chain_shard" if family == "chain" else "msa_shard"
            for bucket in pc.unique(self.index[column].drop_null()).to_pylist():
                name = shard_file(family, bucket)
                path, stated = self.folder / name, sizes.get(name)
                if stated is None or not path.is_file():
                    raise InputError(
                        f"{path}: the index refers to this file, but it is not "
                        f"{'in the manifest' if stated is None else 'there'}. {repack_hint(path)}"
                    )
                if path.stat().st_size != stated:
                    raise InputError(
                        f"{path}: {path.stat().st_size} bytes, the manifest states {stated}: cut "
                        f"off, or packed again without its index. {repack_hint(path)}"
                    )


class _IndexRow:
    """One row of the index; a value is converted when it is asked for."""

    def __init__(self, columns: dict[str, pa.ChunkedArray], row: int) -> None:
        self._columns, self._row = columns, row

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._row].as_py()
