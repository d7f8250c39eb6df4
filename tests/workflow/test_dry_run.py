"""A dry run of the whole PDB takes seconds: what it does is counted, not timed."""

from __future__ import annotations

import pstats
import subprocess
import sys
from pathlib import Path

import yaml

from scalefold.shards.bucket_count import default_bucket_count

WHOLE_PDB = 540_000
"""Chains."""
MOST_CALLS = 36_000_000
"""Function calls of that dry run: 6 s at the 6 million a second that one core was seen to make."""


def calls(checkout: Path, folder: Path, chains: int, buckets: int) -> int:
    """Function calls of a dry run with so many chains in so many buckets."""
    folder.mkdir()
    rows = "".join(f"{n // 3:06d}_{'ABC'[n % 3]}\ttrain\t{n}\n" for n in range(chains))
    (folder / "chains.tsv").write_text("chain_key\tsplit\tcluster_id\n" + rows)
    data = {"chains": str(folder / "chains.tsv"), "buckets": buckets}
    (folder / "my.yaml").write_text(yaml.safe_dump({"data": data, "results": str(folder)}))
    files = ["config.yaml", str(folder / "my.yaml"), "configs/scratch.yaml"]
    snakemake = ["snakemake", "-n", "--profile", "slurm", "--configfile", *files]
    profile = [sys.executable, "-m", "cProfile", "-o", str(folder / "calls"), "-m", *snakemake]
    subprocess.run(profile, cwd=checkout, check=True, capture_output=True)
    return pstats.Stats(str(folder / "calls")).total_calls  # type: ignore[attr-defined]


def test_whole_pdb(checkout: Path, tmp_path: Path) -> None:
    fewest = calls(checkout, tmp_path / "fewest", 3_000, 40)
    a_chain = (calls(checkout, tmp_path / "chains", 33_000, 40) - fewest) / 30_000
    a_bucket = (calls(checkout, tmp_path / "buckets", 3_000, 100) - fewest) / 60
    buckets = default_bucket_count(WHOLE_PDB)
    assert fewest + a_chain * (WHOLE_PDB - 3_000) + a_bucket * (buckets - 40) < MOST_CALLS
