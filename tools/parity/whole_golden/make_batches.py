"""Make ``batches.npz``: two real batches of bundled chains, by scalefold's own way.

    python -m tools.parity.whole_golden.make_batches

fetch -> pack -> features; nothing is drawn or changed by hand but the residues of ``gaps``.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.parity.test_whole_golden import BATCHES

from scalefold.config import load_config
from scalefold.config.schema import FeaturesConfig
from scalefold.features.contract import ALL_FEATURES, Features
from scalefold.features.crop import Crop
from scalefold.features.pipeline import selected_features
from scalefold.features.selection import training_selection
from scalefold.fetch.run import fetch
from scalefold.raw.chains import read_chains
from scalefold.shards.pack import pack
from scalefold.shards.reader import ShardReader

ROOT = Path(__file__).parents[3]
SEED, PASSES = 7, range(4)
CONFIG = FeaturesConfig(crop_size=40, max_msa_clusters=10, max_extra_msa=14, max_templates=2)
GAPS = FeaturesConfig(crop_size=32, max_msa_clusters=6, max_extra_msa=6, max_templates=2)
# 28 residues of 3jqh_A: unobserved at both ends; the chain has no template
GAPS_CROP = Crop(0, 28)


def chain_batch(reader: ShardReader) -> list[Features]:
    """2nwd_X: the first draw with both templates and a clamped FAPE."""
    sample = reader.sample("2nwd_X")
    for draw in range(1000):
        selection = training_selection(sample, CONFIG, SEED, draw, PASSES)
        if len(selection.templates) == 2 and selection.clamped:
            return selected_features(sample, selection, CONFIG)
    raise RuntimeError("no such draw")


def gaps_batch(reader: ShardReader) -> list[Features]:
    """3jqh_A: the first draw without clamping; the stated residues, padded to the crop size."""
    sample = reader.sample("3jqh_A")
    for draw in range(1000):
        selection = training_selection(sample, GAPS, SEED, draw, PASSES)
        if not selection.clamped:
            selection = dataclasses.replace(selection, crop=GAPS_CROP)
            return selected_features(sample, selection, GAPS)
    raise RuntimeError("no such draw")


def stored(passes: list[Features]) -> dict[str, NDArray[Any]]:
    """Features of passes stacked where they differ; integers in few bits."""
    arrays = {}
    for name, spec in ALL_FEATURES.items():
        values = [features[name].numpy() for features in passes]
        array = np.stack(values) if spec.per_pass else values[0]
        small = np.int8 if array.dtype.kind == "i" and abs(array).max(initial=0) < 128 else None
        arrays[name] = array if small is None else array.astype(small)
    return arrays


def main() -> None:
    config = load_config([ROOT / "demo/config.yaml"])
    with tempfile.TemporaryDirectory() as name:
        raw, shards = Path(name) / "raw", Path(name) / "shards"
        rows = read_chains(ROOT / config.data.chains)
        fetch(rows, config.data, raw)
        pack(config, raw, shards)
        reader = ShardReader(shards)
        batches = {"2nwd_X": chain_batch(reader), "gaps": gaps_batch(reader)}
    arrays = {f"{b}/{n}": array for b, p in batches.items() for n, array in stored(p).items()}
    output = BATCHES
    np.savez_compressed(output, **arrays)
    print(f"{output.name}: {output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
