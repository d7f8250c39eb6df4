"""Loss curves: when two ways of training count as alike."""

import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

from scalefold.bench import curves
from scalefold.bench.curves import WINDOWS, bench_curves, compare, windowed
from scalefold.config import Config
from scalefold.errors import InputError
from scalefold.shards.reader import ShardReader


def test_a_difference_counts_against_the_spread_of_the_reference() -> None:
    reference = [[4.0, 2.0], [5.0, 2.5], [6.0, 3.0]]
    shifted = [[value + 1.0 for value in curve] for curve in reference]
    result = compare(shifted, reference)
    assert result["difference"] == [1.0, 1.0]
    assert result["spread"] == [2.0, 1.0]
    assert result["largest_ratio"] == 1.0
    assert result["within_spread"]
    beyond = [[value + 1.125 for value in curve] for curve in reference]
    assert not compare(beyond, reference)["within_spread"]


def test_windows_are_means_of_equal_parts() -> None:
    assert windowed([float(i // 3) for i in range(3 * WINDOWS)]) == list(map(float, range(WINDOWS)))


def test_the_same_configuration_gives_the_same_curves(
    config: Config, shards: Path, tmp_path: Path
) -> None:
    short = _with_training(config, steps=WINDOWS)
    out, cpu, quiet = tmp_path / "curves.json", torch.device("cpu"), Console(quiet=True)
    result = bench_curves(short, short, shards, out, seeds=[0, 1], device=cpu, console=quiet)
    assert json.loads(out.read_text()) == result
    assert result["difference"] == [0.0] * WINDOWS
    assert min(result["spread"]) > 0.0  # another seed is another curve


def test_a_loss_that_is_not_finite_is_no_curve(
    config: Config, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([1.0, float("nan"), float("inf"), 2.0])
    parts = Mock()
    parts.step = lambda *_: Mock(per_sample=torch.tensor([[next(losses)]]))
    monkeypatch.setattr(curves, "assemble", lambda *_: parts)
    short = _with_training(config, steps=4, loader_workers=0, max_staleness=0)
    with pytest.raises(InputError, match=r"seed 0, .*step 2"):
        curves.loss_curve(short, ShardReader(shards), torch.device("cpu"))


def test_a_call_goes_on_where_another_broke_off(
    config: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = _with_training(config, steps=WINDOWS)
    reference = _with_training(short, precision="tf32")
    trained: list[tuple[int, str]] = []

    def curve(one: Config, *_: object) -> list[float]:
        if one.seed == 7:
            raise KeyboardInterrupt
        trained.append((one.seed, one.training.precision))
        return [float(one.seed + (one.training.precision == "tf32"))] * WINDOWS

    monkeypatch.setattr(curves, "loss_curve", curve)
    made = partial(
        bench_curves,
        short,
        reference,
        shards,
        tmp_path / "curves.json",
        device=torch.device("cpu"),
        console=Console(quiet=True),
    )
    with pytest.raises(KeyboardInterrupt):
        made(seeds=[5, 6, 7])
    assert json.loads((tmp_path / "curves.json").read_text())["seeds"] == [5, 6]
    result = made(seeds=[6, 5, 8])
    assert sorted(trained) == [(s, p) for s in (5, 6, 8) for p in ("fp32", "tf32")]
    assert result["seeds"] == [6, 5, 8]
    assert [curve[0] for curve in result["curves"]["reference"]] == [7.0, 6.0, 9.0]
    assert result["difference"] == [-1.0] * WINDOWS
    # seeds that are not asked for are not lost
    assert made(seeds=[5, 6])["seeds"] == [5, 6, 8]
    assert len(trained) == 6


@pytest.mark.parametrize(
    ("steps", "reference_steps", "seeds", "message"),
    [
        (WINDOWS, WINDOWS, [0], "1 seed"),
        (WINDOWS, 2 * WINDOWS, [0, 1], "must be equal"),
        (WINDOWS + 1, WINDOWS + 1, [0, 1], f"{WINDOWS}"),
    ],
)
def test_what_cannot_be_compared(
    config: Config, steps: int, reference_steps: int, seeds: list[int], message: str
) -> None:
    ours, reference = (_with_training(config, steps=n) for n in (steps, reference_steps))
    with pytest.raises(InputError, match=message):
        bench_curves(
            ours, reference, Path("shards"), Path("curves.json"),
            seeds=seeds, device=torch.device("cpu"), console=Console(quiet=True),
        )  # fmt: skip


def _with_training(config: Config, **settings: Any) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update=settings)})
