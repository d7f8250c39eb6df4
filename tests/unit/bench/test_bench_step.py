"""The step benchmark measures what it says and records where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console

from scalefold.bench.step import bench_step
from scalefold.config import make_config
from scalefold.raw.chains import read_chains
from scalefold.raw.fetch import fetch
from scalefold.shards.pack import pack

DEMO = Path(__file__).parents[3] / "demo"


def test_step_benchmark_covers_all_variants_and_recycling_counts(tmp_path: Path) -> None:
    chains = tmp_path / "chains.tsv"
    chains.write_text("chain_key\tsplit\tcluster_id\n5pti_A\ttrain\t5pti_A\n")
    config = make_config(
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
    quiet = Console(quiet=True)
    fetch(read_chains(chains), config.data, tmp_path / "raw", console=quiet)
    pack(config, tmp_path / "raw", tmp_path / "shards", console=quiet)

    result = bench_step(
        config,
        tmp_path / "shards",
        tmp_path / "step.json",
        precisions=["fp32"],
        recomputations=["none", "full"],
        repeats=1,
        device=torch.device("cpu"),
        console=quiet,
    )

    assert json.loads((tmp_path / "step.json").read_text()) == result
    assert [v["recomputation"] for v in result["variants"]] == ["none", "full"]
    for variant in result["variants"]:
        assert len(variant["step_seconds_by_recycling"]) == 2
        assert all(seconds > 0 for seconds in variant["step_seconds_by_recycling"])
    assert result["device"] == "CPU"
    assert result["shapes"]["N_res"] == 16
