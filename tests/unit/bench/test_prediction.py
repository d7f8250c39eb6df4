"""The prediction benchmark times each chain, and counts proteins an hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from scalefold.bench import prediction as module
from scalefold.bench.lengths import Lengths
from scalefold.bench.prediction import bench_prediction, proteins_an_hour
from scalefold.bench.variation import varied
from scalefold.config import Config


def test_chains_are_timed(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lengths, "quantiles", lambda _, number: [20, 24][:number])
    monkeypatch.setattr(module, "MAX_PART_ELEMENTS", 40 * 40 * config.model.c_z)
    result = bench_prediction(
        varied(config, {"evaluation.recycling": 1}),
        tmp_path / "prediction.json",
        lengths=[40, 41],
        num_chains=2,
        device=torch.device("cpu"),
        console=Console(quiet=True),
    )
    assert json.loads((tmp_path / "prediction.json").read_text()) == result
    modes = [(row["residues"], row["mode"]) for row in result["by_length"]]
    assert modes == [(40, "launched"), (41, "in place")]
    assert [row["residues"] for row in result["mix"]["chains"]] == [20, 24]
    assert all(row["seconds"] > 0 for row in result["mix"]["chains"])
    assert result["passes"] == 2
    assert result["mix"]["proteins_an_hour"] > 0


def test_proteins_an_hour() -> None:
    chains = [{"first_seconds": 10, "seconds": 2}, {"first_seconds": 20, "seconds": 4}]
    assert proteins_an_hour(chains) == {
        "proteins_an_hour": 1200.0,
        "proteins_an_hour_first_of_each_length": 240.0,
    }
    assert proteins_an_hour([*chains, {"error": "memory"}]) == proteins_an_hour([]) == {}
