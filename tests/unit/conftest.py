"""Two bundled chains as shards, and a model small enough to train in a test."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scalefold.config import Config, make_config
from scalefold.config.load import merge
from scalefold.fetch.run import fetch
from scalefold.raw.chains import read_chains
from scalefold.shards.pack import pack

DEMO = Path(__file__).parents[2] / "demo"

MICRO: dict[str, Any] = {
    "preset": "tiny",
    "features": {
        "crop_size": 16,
        "max_msa_clusters": 4,
        "max_extra_msa": 4,
        "max_templates": 1,
    },
    "model": {
        "c_m": 8,
        "c_z": 8,
        "c_s": 16,
        "c_e": 8,
        "c_plddt": 8,
        "template": {"c_t": 8},
        "evoformer": {"num_blocks": 1, "num_heads_msa": 2, "num_heads_pair": 2},
        "structure": {"num_layers": 2, "num_heads": 2, "c_angle": 8},
    },
    "optimiser": {"warmup_steps": 2},
    "training": {
        "steps": 6,
        "global_batch_size": 2,
        "max_recycling": 1,
        "checkpoint_every": 2,
        "log_every": 1,
        "loader_workers": 0,
        "compile": False,  # takes longer than a test
    },
}


@pytest.fixture(scope="session")
def demo() -> Path:
    """The folder of the bundled mirror."""
    return DEMO


@pytest.fixture(scope="session")
def shared_mirror() -> Path:
    """A second mirror of real files that a development machine may have beside the repository."""
    folder = DEMO.parents[1] / "shared" / "mirror"
    if not folder.is_dir():
        pytest.skip("no shared mirror beside the repository")
    return folder


@pytest.fixture(scope="session")
def micro_tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The configuration as a tree, for tests that change it."""
    chains = tmp_path_factory.mktemp("chains") / "chains.tsv"
    rows = ["chain_key\tsplit\tcluster_id", "5pti_A\ttrain\t5pti_A", "1a8o_A\ttrain\t1a8o_A"]
    chains.write_text("\n".join(rows) + "\n")
    mirrors = {
        "mmcif": [str(DEMO / "mirror/wwpdb")],
        "alignments": [str(DEMO / "mirror/openproteinset")],
    }
    data = {
        "chains": str(chains),
        "alignments": ["swissprot_hits"],
        "buckets": 1,
        "mirrors": mirrors,
    }
    return merge(MICRO, {"data": data})


@pytest.fixture(scope="session")
def micro(micro_tree: dict[str, Any]) -> Config:
    return make_config(micro_tree)


@pytest.fixture(scope="session")
def shards(micro: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    quiet = Console(quiet=True)
    fetch(read_chains(micro.data.chains), micro.data, folder / "raw")
    pack(micro, folder / "raw", folder / "shards", console=quiet)
    return folder / "shards"
