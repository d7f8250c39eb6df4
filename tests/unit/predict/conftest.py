"""Weights of a micro model, as a checkpoint and as files of other codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.example import set_example_weights

from scalefold.checkpoint.write import save
from scalefold.config import Config
from scalefold.config.identity import config_hash
from scalefold.config.load import preset_config
from scalefold.model import AlphaFold
from scalefold.shards.manifest import data_hash
from scalefold.weights import State
from scalefold.weights.alphafold import Layout, alphafold_entries

DEMO = Path(__file__).parents[3] / "demo"
ALIGNMENTS = DEMO / "mirror/openproteinset/pdb"


def example_state(config: Config, seed: int = 0) -> State:
    model = AlphaFold(config.model)
    set_example_weights(model, seed)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture(scope="session")
def checkpoint(micro: Config, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    averaged = example_state(micro)
    return save(
        tmp_path_factory.mktemp("weights"),
        step=7,
        # Only the averaged weights may be used.
        weights={name: torch.full_like(value, torch.nan) for name, value in averaged.items()},
        averaged=averaged,
        training={},
        description={
            "config": micro.model_dump(mode="json"),
            "config_hash": config_hash(micro),
            "data_manifest_sha256": data_hash(shards),
            "scalefold_version": "0",
            "commit": None,
        },
    )


def write_npz(path: Path, state: State, config: Config) -> None:
    """Write a state under AlphaFold's names, in its layouts."""

    def array(name: str, layout: Layout) -> np.ndarray:
        value = state[name].numpy()
        return value if layout is Layout.FLAT else value.T

    arrays = {}
    for entry in alphafold_entries(config.model):
        parts = [array(name, entry.layout) for name in entry.names]
        arrays[entry.key] = np.stack(parts) if entry.stacked else parts[0]
    with path.open("wb") as file:
        np.savez(file, **arrays)


@pytest.fixture(scope="session")
def micro_overrides(micro_tree: dict[str, Any]) -> dict[str, Any]:
    """What makes a micro model of any preset."""
    micro = preset_config("tiny", {k: micro_tree[k] for k in ("model", "features")})
    keep = {"pae_head"}
    model = micro.model.model_dump(mode="json", exclude=keep)
    model["template"].pop("enabled")
    return {
        "model": model,
        "features": micro_tree["features"],
        "evaluation": {"recycling": 1},
    }


@pytest.fixture(scope="session")
def write_alphafold(
    micro_overrides: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Write random parameters as AlphaFold names its files: ``params_model_1_ptm.npz``."""
    folder = tmp_path_factory.mktemp("alphafold")

    def write(preset: str) -> Path:
        path = folder / f"params_{preset}.npz"
        if not path.exists():
            config = preset_config(preset, micro_overrides)
            write_npz(path, example_state(config, sum(map(ord, preset))), config)
        return path

    return write
