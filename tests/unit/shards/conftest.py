"""Raw folders made from the bundled demo data, and shard folders packed from them."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gemmi
import numpy as np
import pytest
from rich.console import Console

from scalefold.config import make_config
from scalefold.config.schema import Config
from scalefold.raw.raw_folder import alignment_folder, folder_hash, mmcif_path
from scalefold.shards.manifest import Manifest
from scalefold.shards.pack import pack
from scalefold.shards.records import ChainRecord, MsaRecord

DEMO = Path(__file__).parents[3] / "demo"
ENTRIES = "pub/pdb/data/structures/divided/mmCIF"


@dataclass
class Workplace:
    """A raw folder, its table of chains, and a shard folder."""

    folder: Path
    buckets: int | None = 3
    settings: dict = field(default_factory=dict)
    mirrors: dict = field(default_factory=dict)
    alignments: list = field(default_factory=lambda: ["swissprot_hits"])

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    @property
    def out(self) -> Path:
        return self.folder / "shards"

    @property
    def table(self) -> Path:
        return self.folder / "chains.tsv"

    @property
    def config(self) -> Config:
        data = {
            "chains": str(self.table),
            "alignments": self.alignments,
            "buckets": self.buckets,
            "mirrors": {"mmcif": ["unused"], "alignments": ["unused"], **self.mirrors},
        }
        return make_config({"data": data, "shards": self.settings})

    def structure(self, entry: str, renamed: str | None = None) -> Path:
        """Add a demo entry's mmCIF file, under another entry id if asked."""
        source = DEMO / "mirror/wwpdb" / ENTRIES / folder_hash(entry) / f"{entry}.cif.gz"
        path = mmcif_path(self.raw, renamed or entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        if renamed is None:
            shutil.copy(source, path)
        else:
            text = gzip.decompress(source.read_bytes()).decode()
            assert f"data_{entry.upper()}" in text
            text = text.replace(entry.upper(), renamed.upper())
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
        return path

    def alignment(self, chain_key: str, renamed: str | None = None) -> Path:
        """Add a demo chain's alignment files, for another chain if asked; return the a3m."""
        source = DEMO / "mirror/openproteinset/pdb" / chain_key
        target = alignment_folder(self.raw, renamed or chain_key)
        shutil.copytree(source, target, dirs_exist_ok=True)
        return target / "a3m" / "swissprot_hits.a3m"

    def list_chains(self, *rows: tuple[str, str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = ["\t".join(row) for row in [("chain_key", "split", "cluster_id"), *rows]]
        self.table.write_text("\n".join(lines) + "\n")

    def pack(self, jobs: int = 1) -> Manifest:
        return pack(self.config, self.raw, self.out, jobs, Console(quiet=True))


def redate(path: Path, date: str) -> None:
    """Give an entry another date of release."""
    block = gemmi.cif.read_string(gzip.decompress(path.read_bytes())).sole_block()
    for row in block.find(["_pdbx_audit_revision_history.revision_date"]):
        row[0] = date
    path.write_bytes(gzip.compress(block.as_string().encode()))


def demo_workplace(folder: Path) -> Workplace:
    """All bundled chains."""
    work = Workplace(folder)
    rows = [tuple(line.split("\t")) for line in (DEMO / "chains.tsv").read_text().splitlines()]
    work.list_chains(*rows[1:])
    for key, split, _ in rows[1:]:
        work.structure(key.rpartition("_")[0])
        if split != "template":
            work.alignment(key)
    return work


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """The bundled chains, packed. Not to be changed."""
    work = demo_workplace(tmp_path_factory.mktemp("demo"))
    work.pack()
    return work


@pytest.fixture
def demo_copy(demo: Workplace, tmp_path: Path) -> Workplace:
    """A copy of the packed bundled chains, to be damaged."""
    shutil.copytree(demo.folder, tmp_path / "copy")
    return Workplace(tmp_path / "copy")


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """An empty place."""
    return Workplace(tmp_path)


@pytest.fixture
def make_chain() -> Callable[..., ChainRecord]:
    def make(seed: int = 0, length: int = 9, key: str = "1abc_A") -> ChainRecord:
        rng = np.random.default_rng(seed)
        mask = rng.random((length, 37)) < 0.4
        positions = rng.normal(size=(length, 37, 3)).astype(np.float32) * mask[..., None]
        return ChainRecord(
            chain_key=key,
            label_asym_id="B",
            auth_asym_id="A",
            seq_id=hashlib.sha256(str(seed).encode()).digest(),
            method="x-ray diffraction",
            origin="experimental",
            aatype=rng.integers(0, 21, length).astype(np.uint8),
            positions=positions,
            atom_mask=mask,
            resolution=2.2,
            release_date=datetime.date(1998, 4, 8),
            cluster_id="c1",
            confidence=None,
        )

    return make


@pytest.fixture
def make_msa() -> Callable[..., MsaRecord]:
    def make(seed: int = 0, rows: int = 5, length: int = 9) -> MsaRecord:
        rng = np.random.default_rng(seed)
        counts = rng.integers(0, 3, rows)
        total = int(counts.sum())
        return MsaRecord(
            seq_id=hashlib.sha256(str(seed).encode()).digest(),
            msa=rng.integers(0, 22, (rows, length)).astype(np.uint8),
            del_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32),
            del_col=rng.integers(0, length, total).astype(np.uint16),
            del_val=rng.integers(1, 9, total).astype(np.uint16),
            row_source=rng.integers(0, 3, rows).astype(np.uint8),
            profile=rng.random((length, 22)).astype(np.float32),
            num_seq_full=rows + 2,
        )

    return make
