"""The evaluation benchmark's chains have the stated lengths, and all of them are scored."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from rich.console import Console

from scalefold.bench import evaluation as module
from scalefold.bench.evaluation import bench_evaluation, cameo_like_lengths
from scalefold.bench.variation import varied
from scalefold.config import Config


def test_lengths_are_those_of_the_distribution() -> None:
    lengths = cameo_like_lengths(180)
    assert lengths == sorted(lengths)
    assert module.SHORTEST_RESIDUES <= lengths[0] < 60
    assert lengths[-1] == module.LONGEST_RESIDUES
    assert statistics.median(lengths) == pytest.approx(module.MEDIAN_RESIDUES, rel=0.01)
    # one standard deviation of the logarithm is 15.9 % from the ends
    assert lengths[28] == pytest.approx(220 * math.exp(-module.SPREAD), rel=0.02)
    assert cameo_like_lengths(1) == [module.MEDIAN_RESIDUES]


def test_all_chains_are_predicted_and_scored(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cameo_like_lengths", lambda number: [20, 24, 70][:number])
    small = varied(config, {"evaluation.recycling": 1, "features.template_pool": 4})
    result = bench_evaluation(
        small,
        tmp_path / "evaluation.json",
        num_chains=3,
        num_rows=8,
        device=torch.device("cpu"),
        console=Console(quiet=True),
    )
    assert json.loads((tmp_path / "evaluation.json").read_text()) == result
    assert result["counts"] == {"scored": 3, "skipped": 0, "failed": 0}
    assert result["seconds"] >= result["prediction_seconds"] > 0
    groups = [(row["up_to_residues"], row["chains"]) for row in result["by_length"]]
    assert groups == [(64, 2), (128, 1)]
    assert (result["device"], result["precision"]) == ("CPU", "fp32")
