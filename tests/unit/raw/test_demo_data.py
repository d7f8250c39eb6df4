"""The bundled data: every file accounted for, small enough, and readable."""

from __future__ import annotations

import csv
import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from scalefold.raw.a3m import read_folder
from scalefold.raw.chains import ChainRow, read_chains
from scalefold.raw.hhr import read_hhr
from scalefold.raw.mmcif import Chain, read_entry
from scalefold.raw.raw_folder import folder_hash

MAX_BYTES = 4_000_000
LICENCES = {"CC0-1.0", "CC-BY-4.0 (UniProt)", "Apache-2.0"}


@pytest.fixture(scope="module")
def rows(demo: Path) -> list[ChainRow]:
    return read_chains(demo / "chains.tsv")


@pytest.fixture(scope="module")
def chains(demo: Path, rows: list[ChainRow]) -> dict[str, Chain]:
    folder = demo / "mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF"
    return {
        row.chain_key: read_entry(
            folder / folder_hash(row.entry_id) / f"{row.entry_id}.cif.gz"
        ).chain(row.chain_key)
        for row in rows
    }


def test_every_file_has_its_provenance_and_hash(demo: Path) -> None:
    with (demo / "PROVENANCE.tsv").open(encoding="utf-8") as file:
        table = {row["path"]: row for row in csv.DictReader(file, delimiter="\t")}
    files = {
        p.relative_to(demo).as_posix(): p
        for p in demo.rglob("*")
        if p.is_file()
        and p.name != "PROVENANCE.tsv"
        and p.suffix != ".yaml"
        and "__pycache__" not in p.parts
    }
    assert set(table) == set(files)
    for name, path in files.items():
        row = table[name]
        assert row["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest(), name
        assert row["what"], name
        assert row["source"], name
        assert row["licence"] in LICENCES, name


def test_small_enough(demo: Path) -> None:
    assert sum(p.stat().st_size for p in demo.rglob("*") if p.is_file()) < MAX_BYTES


def test_every_mmcif_file_is_used(demo_mmcif: list[Path], rows: list[ChainRow]) -> None:
    assert {p.name.split(".")[0] for p in demo_mmcif} == {row.entry_id for row in rows}


def test_alignments_and_hits_fit_their_chains(
    demo: Path, rows: list[ChainRow], chains: dict[str, Chain]
) -> None:
    for row in rows:
        folder = demo / "mirror/openproteinset/pdb" / row.chain_key
        assert folder.exists() == (row.split != "template")
        if row.split != "template":
            sequence = chains[row.chain_key].sequence
            alignment = read_folder(folder, sequence, ["swissprot_hits"])
            assert alignment.msa.shape[1] == len(sequence)
            assert read_hhr(folder / "hhr/pdb70_hits.hhr", sequence)


def test_splits_share_no_cluster_and_no_hit(
    demo: Path, rows: list[ChainRow], chains: dict[str, Chain]
) -> None:
    split = {row.chain_key: row.split for row in rows}
    cluster = {row.chain_key: row.cluster_id for row in rows}
    assert all(cluster.values())
    train = [key for key in split if split[key] == "train"]
    validation = [key for key in split if split[key] == "validation"]
    assert len(train) >= 6
    assert len(validation) >= 3
    assert not {cluster[k] for k in train} & {cluster[k] for k in validation}
    for key in train + validation:
        path = demo / "mirror/openproteinset/pdb" / key / "hhr/pdb70_hits.hhr"
        for hit in read_hhr(path, chains[key].sequence):
            assert split[hit.chain_key] in (split[key], "template"), (key, hit.chain_key)


def test_what_the_set_is_meant_to_cover(
    demo_mmcif: list[Path], rows: list[ChainRow], chains: dict[str, Chain]
) -> None:
    used = [chains[row.chain_key] for row in rows if row.split != "template"]
    assert len(used) >= 10
    assert all(40 <= len(chain) <= 300 for chain in used)
    assert sum("nmr" in chain.method for chain in used) >= 1
    assert sum(not chain.atom_mask.any(axis=1).all() for chain in used) >= 3  # missing residues
    assert any(chain.resolution is None for chain in used)
    assert any(chain.release_date is None for chain in used)
    texts = {p.name: gzip.decompress(p.read_bytes()) for p in demo_mmcif}
    assert sum(b"\nHETATM" in t and b" MSE " in t for t in texts.values()) >= 2
    assert chains["3jqh_A"].sequence.startswith("GELPEKSK")
    # Backbones are whole where they are seen: C-N of neighbours 1.33 Å apart, in real structures.
    for chain in used:
        both = chain.atom_mask[:-1, 2] & chain.atom_mask[1:, 0]
        distance = np.linalg.norm(chain.positions[:-1, 2] - chain.positions[1:, 0], axis=1)[both]
        assert abs(np.median(distance) - 1.33) < 0.05, chain.chain_key
