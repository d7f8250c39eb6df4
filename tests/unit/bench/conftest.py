"""One bundled chain as shards, and a model small enough to time in a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from scalefold.config import Config, make_config
from scalefold.raw.chains import read_chains
from scalefold.raw.fetch import fetch
from scalefold.shards.pack import pack

DEMO = Path(__file__).parents[3] / "demo"


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    chains = tmp_path_factory.mktemp("chains") / "chains.tsv"
    chains.write_text("chain_key\tsplit\tcluster_id\n5pti_A\ttrain\t5pti_A\n")
    return make_config(
        {
            "preset": "tiny",
            "data": {
                "chains": str(chains),
                "mirrors": {
                    "mmcif": [str(DEMO / "mirror/wwpdb")],
                    "alignments": [str(DEMO / "mirror/openproteinset")],
                },
                "alignments": ["swissprot_hits"],
                "buckets": 1,
            },
            "features": {"crop_size": 16, "max_msa_clusters": 2, "max_extra_msa": 2},
            "training": {"max_recycling": 1},
        }
    )


@pytest.fixture(scope="session")
def shards(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, quiet = tmp_path_factory.mktemp("data"), Console(quiet=True)
    fetch(read_chains(config.data.chains), config.data, folder / "raw", console=quiet)
    pack(config, folder / "raw", folder / "shards", console=quiet)
    return folder / "shards"
