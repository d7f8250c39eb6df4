"""The evaluation benchmark's chains have the stated lengths, and all of them are scored."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from rich.console import Console

from scalefold.bench.evaluation import bench_evaluation
from scalefold.bench.lengths import CAMEO_LIKE, Lengths
from scalefold.bench.variation import varied
from scalefold.config import Config


def test_lengths_are_those_of_the_distribution() -> None:
    lengths = CAMEO_LIKE.quantiles(180)
    assert lengths == sorted(lengths)
    assert CAMEO_LIKE.shortest <= lengths[0] < 60
    assert lengths[-1] == CAMEO_LIKE.longest
    assert statistics.median(lengths) == pytest.approx(CAMEO_LIKE.median, rel=0.01)
    # one standard deviation of the logarithm is 15.9 % from the ends
    assert lengths[28] == pytest.approx(220 * math.exp(-CAMEO_LIKE.spread), rel=0.02)
    assert CAMEO_LIKE.quantiles(1) == [CAMEO_LIKE.median]


def test_all_chains_are_predicted_and_scored(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lengths, "quantiles", lambda _, number: [20, 24, 70][:number])
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
