"""Packing deep, published alignments (a second mirror, where there is one)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from scalefold.config import make_config
from scalefold.raw.raw_folder import folder_hash, mmcif_path
from scalefold.raw.rejected import read_rejected
from scalefold.shards.pack import pack
from scalefold.shards.reader import ShardReader
from scalefold.shards.verify import verify

MIRROR = Path(__file__).parents[4] / "shared" / "mirror"
KEYS = ("102m_A", "1k1a_A", "7zzx_B", "1a3p_A", "1a02_F")
ENTRIES = ("102m", "1k1a", "7zzx", "3zee", "4i6p", "4zey")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MIRROR.is_dir():
        pytest.skip("no shared mirror beside the repository")
    folder = tmp_path_factory.mktemp("mirror")
    raw, out, table = folder / "raw", folder / "shards", folder / "chains.tsv"
    shutil.copytree(MIRROR / "openproteinset/pdb", raw / "alignments")
    structures = MIRROR / "wwpdb/pdb/data/structures/divided/mmCIF"
    for entry in ENTRIES:
        target = mmcif_path(raw, entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(structures / folder_hash(entry) / f"{entry}.cif.gz", target)
    rows = [f"{key}\ttrain\t" for key in KEYS] + ["4i6p_A\ttemplate\t", "4zey_A\ttemplate\t"]
    table.write_text("\n".join(["chain_key\tsplit\tcluster_id", *rows]) + "\n")
    data = {
        "chains": str(table),
        "alignments": ["uniref90_hits", "uniref100_hits", "colabfold_hits"],
        "buckets": 2,
        "mirrors": {"mmcif": ["unused"], "alignments": ["unused"]},
    }
    config = make_config({"data": data, "shards": {"max_msa_rows": 4000}})
    pack(config, raw, out, console=Console(quiet=True))
    return out


def test_deep_alignments_are_packed_and_sound(packed: Path) -> None:
    reader = ShardReader(packed)
    assert reader.keys("train") == ["102m_A", "1k1a_A", "7zzx_B"]
    depths = {}
    for key in reader.keys("train"):
        msa = reader.msa(key)
        depths[key] = len(msa.msa)
        assert len(msa.msa) == min(msa.num_seq_full, 4000)
        assert len(np.unique(msa.msa, axis=0)) == len(msa.msa)
        assert set(msa.row_source.tolist()) <= {4, 5}
        np.testing.assert_array_equal(msa.msa[0], reader.chain(key).aatype)
    assert max(depths.values()) > 1000
    assert verify(packed) == []


def test_chains_without_structures_are_set_aside(packed: Path) -> None:
    rejected = read_rejected(packed / "rejected.tsv")
    assert [(r.chain_key, r.stage) for r in rejected] == [
        ("1a02_F", "structure"),
        ("1a3p_A", "structure"),
    ]
