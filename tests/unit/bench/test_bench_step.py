"""The step benchmark measures what it says and records where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from scalefold.bench import step
from scalefold.bench.step import bench_step
from scalefold.bench.synthetic_shards import given_or_full
from scalefold.config import Config
from scalefold.engine.memory import limit_memory
from scalefold.errors import InputError

CPU = torch.device("cpu")


def _timed(
    config: Config,
    shards: Path,
    out: Path,
    vary: Mapping[str, Sequence[Any]] | None = None,
    memory_gib: Sequence[float] = (),
    seconds: float = 0.01,
) -> tuple[dict[str, Any], str]:
    """What `bench_step` wrote, and what it printed."""
    printed = StringIO()
    result = bench_step(
        config,
        shards,
        out,
        vary=vary or {},
        seconds=seconds,
        memory_gib=memory_gib,
        device=CPU,
        console=Console(file=printed, width=200),
    )
    return result, printed.getvalue()


def test_all_combinations_and_recycling_counts(
    config: Config, shards: Path, tmp_path: Path
) -> None:
    vary = {"training.recomputation": ["none", "full"], "training.global_batch_size": [1, 2]}
    result, printed = _timed(config, shards, tmp_path / "step.json", vary)

    assert json.loads((tmp_path / "step.json").read_text()) == result
    settings = [tuple(variant["settings"].values()) for variant in result["variants"]]
    assert settings == [("none", 1), ("none", 2), ("full", 1), ("full", 2)]
    assert [v["recomputation"] for v in result["variants"]] == ["none", "none", "full", "full"]
    for variant in result["variants"]:
        seconds, samples = (
            variant["step_seconds_by_recycling"],
            variant["settings"]["training.global_batch_size"],
        )
        assert len(seconds) == 2
        assert min(seconds) > 0
        mean = variant["mean_step_seconds"]
        assert mean == pytest.approx(sum(seconds) / 2, rel=1e-3)
        assert variant["samples_per_second"] == pytest.approx(samples / mean, rel=1e-3)
        single = result["variants"][0]["teraflops_by_recycling"]
        assert variant["teraflops_by_recycling"] == pytest.approx(
            [samples * one for one in single], rel=1e-3
        )
    assert (result["device"], result["shapes"]["N_res"]) == ("CPU", 16)
    # 5pti_A has 58 residues, and no templates
    assert [v["filled"]["N_res"] for v in result["variants"]] == [1.0] * 4
    assert [v["filled"]["templates"] for v in result["variants"]] == [0.0] * 4
    assert "recomputation none, global_batch_size 2" in printed


def test_without_time_each_count_is_measured_once(
    config: Config, shards: Path, tmp_path: Path
) -> None:
    result, _ = _timed(config, shards, tmp_path / "step.json", seconds=0.0)
    assert min(result["variants"][0]["step_seconds_by_recycling"]) > 0


def test_a_cpu_has_no_memory_to_limit() -> None:
    with pytest.raises(InputError, match="CPU"):
        limit_memory(40.0, CPU)


def test_each_limit_of_memory_is_set_and_recorded(
    config: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(step, "limit_memory", lambda gib, device: limits.append(gib))
    result, printed = _timed(config, shards, tmp_path / "step.json", memory_gib=(80.0, 40.0))
    assert limits == [80.0, 40.0]
    assert [variant["memory_limit_gib"] for variant in result["variants"]] == limits
    assert "within 40 GiB" in printed


def test_samples_of_made_up_shards_are_full(config: Config, tmp_path: Path) -> None:
    with given_or_full(None, config.features) as shards:
        result, _ = _timed(config, shards, tmp_path / "step.json")
    (variant,) = result["variants"]
    assert not shards.exists()
    parts = ("N_res", "msa_clusters", "extra_msa")
    assert [variant["filled"][part] for part in parts] == [1.0, 1.0, 1.0]


def test_shards_that_are_named_are_used_and_stay(config: Config, tmp_path: Path) -> None:
    with given_or_full(tmp_path, config.features) as shards:
        assert shards == tmp_path
    assert tmp_path.is_dir()
