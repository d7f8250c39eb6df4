"""The made-up mirror, by which the data stages are measured, is one that they accept."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from tools.bench_data import pack_rate, scale
from tools.repeated_raw import repeat
from tools.synthetic_mirror import write_mirror

from scalefold.config import make_config
from scalefold.fetch.run import fetch
from scalefold.raw.chains import read_chains
from scalefold.shards.pack import pack
from scalefold.shards.verify import verify

QUIET = Console(quiet=True)
ROOT = Path(__file__).parents[3]


def test_a_made_up_mirror_is_packed_whole(tmp_path: Path) -> None:
    write_mirror(tmp_path, 8)
    data = {
        "chains": str(tmp_path / "chains.tsv"),
        "mirrors": {
            "mmcif": [str(tmp_path / "wwpdb")],
            "alignments": [str(tmp_path / "openproteinset")],
        },
    }
    config = make_config({"data": data})
    fetch(read_chains(config.data.chains), config.data, tmp_path / "raw")
    manifest = pack(config, tmp_path / "raw", tmp_path / "shards", console=QUIET)
    assert manifest.counts["chains set aside"] == 0
    assert manifest.counts["alignments"] == 2
    assert manifest.counts["template hits, not found in its structure"] == 0
    assert manifest.counts["template hits, kept"] > 0
    assert verify(tmp_path / "shards") == []


def test_the_stages_behind_packing_are_measured_on_a_made_up_list(tmp_path: Path) -> None:
    measured = scale(tmp_path, 40)
    assert measured["shape"]["chains"] == measured["open"]["chains"] == 40
    assert measured["shape"]["template hits, kept"] > 0


def test_copies_of_public_files_are_packed_each(tmp_path: Path) -> None:
    measured = []
    for copies in (1, 3):
        folder = tmp_path / str(copies)
        repeat([ROOT / "demo/mirror"], folder, copies)
        rate = pack_rate(folder / "raw", folder / "config.yaml", folder / "shards")
        assert rate["counts"]["chains set aside"] == 0
        measured.append(rate["shape"])
    once, often = measured
    assert often["chains"] == 3 * once["chains"] > 0
    assert often["alignments"] == 3 * once["alignments"] > 0
