"""The loader's benchmark times every loader, with and without delayed reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from scalefold.bench import loader as module
from scalefold.bench.loader import Delay, DelayedReader, bench_loader
from scalefold.bench.variation import varied
from scalefold.config import Config
from scalefold.shards.reader import ShardReader


def test_every_loader_with_and_without_delays(
    config: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "processor_seconds", lambda *_: {"p50": 0.0})
    out, steps, seconds = tmp_path / "loader.json", 4, 0.05
    result = bench_loader(
        varied(config, {"training.loader_workers": 0, "training.max_recycling": 0}),
        shards,
        out,
        steps=steps,
        step_seconds=0.0,
        delay=Delay(every=4, seconds=seconds),
        device=torch.device("cpu"),
        console=Console(quiet=True),
    )
    assert json.loads(out.read_text()) == result
    names = ["ready first", "in order", "torch DataLoader"]
    assert [row["loader"] for row in result["loaders"]] == 2 * names
    for row in result["loaders"]:
        waits = row["wait_seconds"]
        assert 0 <= waits["p50"] <= waits["p99"] <= waits["max"]
        assert 0 < row["wait_share"] <= 1
        if row["delay"]["every"]:
            assert waits["max"] >= seconds


def test_every_so_many_reads_are_delayed(
    config: Config, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    reader = DelayedReader(ShardReader(shards), Delay(every=3, seconds=7.0))
    after = [len(slept) for _ in range(7) if reader.sample("5pti_A")]
    assert slept == [7.0, 7.0]
    assert after == [0, 1, 1, 1, 2, 2, 2]
