"""The ladder's rungs are settings, measured once each and drawn as they were measured."""

from __future__ import annotations

import json
import logging
from io import StringIO
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

from scalefold.bench import ladder as module
from scalefold.bench.flops import StepFlops
from scalefold.bench.ladder import (
    Rung,
    _cumulative,
    bench_ladder,
    ladder_table,
    rungs,
    total_seconds,
)
from scalefold.bench.variation import varied
from scalefold.config import Config
from scalefold.errors import InputError
from scalefold.report.ladder import ladder_figure, save_ladder

CPU = torch.device("cpu")
ON_A_CPU = (
    Rung("baseline", "slow", {"training.recomputation": "full", "training.loader_workers": 0}),
    Rung("kept", "fast", {"training.recomputation": "none"}),
)


def test_the_top_is_the_default_configuration(config: Config) -> None:
    *_, (_, settings) = _cumulative(rungs())
    top, default = (varied(config, changes).training for changes in (settings, {}))
    default = varied(
        config,
        {
            f"training.{key}": type(default).model_fields[key].default
            for key in ("precision", "loader_workers", "max_staleness")
        },
    ).training
    for key in type(top).model_fields:
        if key == "kernels":
            assert get_args(module.KernelPackage) == tuple(top.kernels)  # all: what auto means
        elif key in ("cuda_graphs", "compile"):
            assert (getattr(top, key), getattr(default, key)) == (True, "auto")
        elif key == "recomputation":
            assert (top.recomputation, default.recomputation) == ("none", "auto")
        else:
            assert getattr(top, key) == getattr(default, key), key


def test_every_rung_changes_something_and_is_possible(config: Config) -> None:
    before = config
    for rung, settings in _cumulative(rungs()):
        variant = varied(config, settings)
        assert variant != before, rung.name
        before = variant


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rungs, whose operations are not counted: that has tests of its own."""
    monkeypatch.setattr(module, "rungs", lambda: ON_A_CPU)
    monkeypatch.setattr(module, "count_flops", lambda config: StepFlops(1, 3))


def measure(config: Config, shards: Path, out: Path, **options: Any) -> tuple[dict, str]:
    printed = StringIO()
    console = Console(file=printed, width=160)
    return bench_ladder(config, shards, out, device=CPU, console=console, **options), (
        printed.getvalue()
    )


@pytest.mark.usefixtures("short")
def test_rungs_are_measured_once_and_kept(
    config: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMED_SECONDS", 0.01)
    monkeypatch.setattr(module, "_LOADED_SECONDS", 0.01)
    monkeypatch.setattr("scalefold.checkpoint.provenance.source_commit", lambda: "c0ffee")
    out = tmp_path / "ladder.json"
    first, _ = measure(config, shards, out, only=["kept"])
    assert [row["rung"] for row in first["rungs"]] == ["kept"]
    with monkeypatch.context() as broken_off:
        broken_off.setattr(module, "prepared_samples", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            measure(config, shards, out)
    assert json.loads(out.read_text()) == first
    both, printed = measure(config, shards, out)
    assert json.loads(out.read_text()) == both
    assert [row["rung"] for row in both["rungs"]] == ["baseline", "kept"]
    assert both["rungs"][1] == first["rungs"][0]
    for row in both["rungs"]:
        assert row["mean_step_seconds"] > 0
        assert row["loading_seconds"] >= 0  # both change how samples come, or are the last
    assert "baseline" in printed
    whole = tmp_path / "whole.json"
    taken, _ = measure(config, shards, whole, parts=[out])
    assert taken["rungs"] == both["rungs"]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("commit", "changes", "different"),
    [
        ("beef", {}, "its commit is c0ffee, here beef"),
        ("c0ffee", {"optimiser.clip_norm": 0.5}, "its run_key is "),
    ],
)
def test_what_is_of_other_code_or_settings_is_refused_as_a_part_and_else_measured_anew(
    config: Config,
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    commit: str,
    changes: dict[str, Any],
    different: str,
) -> None:
    caplog.set_level(logging.INFO, "scalefold")
    measured = iter(["first", "second", "third", "fourth"])
    monkeypatch.setattr(module, "_measure", lambda *_, **__: {"out_of_memory": next(measured)})
    monkeypatch.setattr("scalefold.checkpoint.provenance.source_commit", lambda: "c0ffee")
    part, whole = tmp_path / "part.json", tmp_path / "whole.json"
    measure(config, shards, part)
    monkeypatch.setattr("scalefold.checkpoint.provenance.source_commit", lambda: commit)
    other = varied(config, changes)
    with pytest.raises(InputError, match=f"--part {part}: {different}"):
        measure(other, shards, whole, parts=[part])
    assert not whole.exists()
    anew, _ = measure(other, shards, part)
    assert [row["out_of_memory"] for row in anew["rungs"]] == ["third", "fourth"]
    assert f"{part}: all is measured again, since {different}" in caplog.text


def test_unknown_rungs_and_other_files_are_refused(
    config: Config, shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="grafs"):
        measure(config, shards, tmp_path / "l.json", only=["grafs"])
    with pytest.raises(InputError, match=r"part\.json"):
        measure(config, shards, tmp_path / "l.json", parts=[tmp_path / "part.json"])
    (tmp_path / "l.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="bench ladder"):
        measure(config, shards, tmp_path / "l.json")


def row(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "rung": name,
        "mean_step_seconds": seconds,
        "step_seconds_by_recycling": [seconds],
        "launches_by_recycling": [1000],
        "gpu_busy_seconds_by_recycling": [seconds],
        "peak_memory_gib": 20.0,
        "flop_utilisation": 0.1,
        **more,
    }


LADDER = {
    "device": "Some GPU",
    "rungs": [
        row("baseline", 2.0, loading_seconds=0.5),
        {"rung": "large", "out_of_memory": "too large"},
        row("graphs", 0.25),
    ],
}


def test_gains_count_loading_and_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    assert total_seconds(LADDER["rungs"][0]) == 2.5
    printed = StringIO()
    Console(file=printed, width=160).print(ladder_table(LADDER["rungs"]))
    assert "10.00" in printed.getvalue()
    assert "out of memory" in printed.getvalue()
    drawn = ladder_figure(LADDER)
    assert drawn is not None
    for text in ("2.500 s", "×10.0", "+ graphs", "waiting for samples"):
        assert text in drawn.svg
    assert "large" not in drawn.svg
    save_ladder(LADDER, tmp_path / "ladder.svg")
    assert "×10.0" in (tmp_path / "ladder.svg").read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [("ladder.doc", "Format 'doc' is not"), ("no/ladder.svg", "cannot be written")],
)
def test_a_file_that_cannot_be_drawn_is_named_and_not_there(
    tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(InputError, match=f"{name}: {said}"):
        save_ladder(LADDER, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_measured_is_not_drawn(tmp_path: Path) -> None:
    empty = {"device": "CPU", "rungs": []}
    assert ladder_figure(empty) is None
    with pytest.raises(InputError, match="nothing to draw"):
        save_ladder(empty, tmp_path / "ladder.svg")
