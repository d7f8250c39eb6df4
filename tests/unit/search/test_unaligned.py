"""Which packed chains are searched: one of each sequence that has no alignment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scalefold.config import make_config
from scalefold.config.schema import Config
from scalefold.raw.chains import read_chains
from scalefold.raw.raw_folder import mmcif_path
from scalefold.search.search import search
from scalefold.search.unaligned import unaligned
from scalefold.shards.buckets import filled_buckets
from scalefold.shards.pack_structures import pack_structures

DEMO = Path(__file__).parents[3] / "demo"
ENTRIES = DEMO / "mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF"
CHAINS = {"5pti_A": "train", "1mol_A": "train", "1mol_B": "train", "2crb_A": "template"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A configuration, and its structures packed: two chains of one sequence among them."""
    table = tmp_path / "chains.tsv"
    rows = [f"{key}\t{split}\t" for key, split in CHAINS.items()]
    table.write_text("\n".join(["chain_key\tsplit\tcluster_id", *rows]) + "\n")
    data = {
        "chains": str(table),
        "alignments": ["swissprot_hits"],
        "buckets": 3,
        "mirrors": {"mmcif": ["unused"], "alignments": ["unused"]},
    }
    config = make_config({"data": data, "search": {"query_alone": True}})
    for entry in {key[:4] for key in CHAINS}:
        path = mmcif_path(tmp_path / "raw", entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ENTRIES / entry[1:3] / path.name, path)
    (tmp_path / "shards").mkdir()
    for bucket in filled_buckets(read_chains(table), 3):
        pack_structures(config, tmp_path / "raw", tmp_path / "shards", bucket)
    return config


def _add_alignment(raw: Path, key: str, source: str) -> None:
    folder = DEMO / "mirror/openproteinset/pdb" / source
    shutil.copytree(folder, raw / "alignments" / key)


def test_one_chain_of_each_sequence_without_an_alignment(tmp_path: Path, config: Config) -> None:
    raw, shards = tmp_path / "raw", tmp_path / "shards"
    found = unaligned(config, raw, shards)
    assert [record.name for record in found] == ["1mol_A", "5pti_A"]
    search(found, config, raw)
    assert unaligned(config, raw, shards) == found  # the search knows itself what is done
    _add_alignment(raw, "1mol_B", "1mol_A")
    assert [record.name for record in unaligned(config, raw, shards)] == ["5pti_A"]


def test_a_chain_with_a_given_alignment_stands_for_its_sequence(
    tmp_path: Path, config: Config
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "1mol_B.a3m").touch()
    section = config.search.model_copy(update={"given": given})
    found = unaligned(
        config.model_copy(update={"search": section}), tmp_path / "raw", tmp_path / "shards"
    )
    assert [record.name for record in found] == ["1mol_B", "5pti_A"]
