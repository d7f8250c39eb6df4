"""A run told in MLPerf's lines: what happened when, and whether the target was reached."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from scalefold.errors import InputError
from scalefold.report import mlperf_log
from scalefold.report.mlperf_log import PREFIX, write_mlperf_log

PUBLISHED, EVALUATED = 1_790_000_000.0, 60.0
"""When the first checkpoint was there, Unix time; seconds from a checkpoint to its evaluation."""


@pytest.fixture
def events(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, Any]]]:
    """Lines of the log of a made-up run, whose checkpoints of step 0 and 200 are there."""
    index = pa.table(
        {
            "split": ["train", "train", "validation", "template"],
            "release_date": [datetime.date(2020, 1, 2), None, datetime.date(2022, 1, 1), None],
        }
    )
    monkeypatch.setattr(mlperf_log, "ShardReader", lambda shards: SimpleNamespace(index=index))

    def make(**changes: Any) -> list[dict[str, Any]]:
        run = make_run(**changes)
        for step in (0, 200):
            (mark,) = run.glob(f"weights/*/step-{step:08d}.ready")
            (result,) = run.glob(f"evaluation/*/step-{step:08d}.json")
            os.utime(mark, times=(PUBLISHED + step, PUBLISHED + step))
            os.utime(result, times=(PUBLISHED + step + EVALUATED,) * 2)
        write_mlperf_log(run, None, run / "shards", tmp_path / "log")
        lines = (tmp_path / "log").read_text().splitlines()
        return [json.loads(line.removeprefix(PREFIX)) for line in lines]

    return make


def of(events: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [event for event in events if event["key"] == key]


def test_times_are_those_of_checkpoints_and_evaluations(events) -> None:
    lines = events(training={"global_batch_size": 8})
    times = [line["time_ms"] for line in lines]
    assert times == sorted(times)
    assert lines[0]["key"] == "init_start"
    for key in ("init", "run", "epoch", "eval"):
        starts, stops = of(lines, f"{key}_start"), of(lines, f"{key}_stop")
        assert len(starts) == len(stops) == {"eval": 2}.get(key, 1)
        assert {line["event_type"] for line in starts} == {"INTERVAL_START"}
        assert {line["event_type"] for line in stops} == {"INTERVAL_END"}
    seconds = [line["time_ms"] / 1000 - PUBLISHED for line in of(lines, "eval_start")]
    assert seconds == [0, 200]
    accuracies = of(lines, "eval_accuracy")
    assert [line["time_ms"] / 1000 - PUBLISHED for line in accuracies] == [60, 260]
    assert accuracies[0]["value"] < accuracies[1]["value"]
    # samples; the checkpoints of the other evaluations were given up
    assert [line["metadata"]["epoch_num"] for line in accuracies] == [0, 1600]
    (end,) = of(lines, "run_stop")
    assert end["metadata"]["status"] == "aborted"
    assert end["time_ms"] == accuracies[-1]["time_ms"]


def test_an_evaluation_by_hand_may_have_a_shorter_name(
    make_run: Callable[..., Path], events, tmp_path: Path
) -> None:
    expected = of(events(), "eval_accuracy")
    (result,) = (tmp_path / "demo").glob("evaluation/*/step-00000200.json")
    result.rename(result.with_name("step-200.json"))
    write_mlperf_log(tmp_path / "demo", None, tmp_path / "demo/shards", tmp_path / "log")
    lines = (tmp_path / "log").read_text().splitlines()
    found = [json.loads(line.removeprefix(PREFIX)) for line in lines]
    assert of(found, "eval_accuracy") == expected


def test_facts_are_of_the_data_and_the_configuration(events) -> None:
    found = {line["key"]: line["value"] for line in events()}
    assert (found["train_samples"], found["eval_samples"]) == (2, 1)
    assert found["train_max_pdb_release_date"] == "2020-01-02"
    assert found["target_avg_lddt_ca_value"] is None
    assert "init_checkpoint_sha256sum" not in found
    assert found["fape_loss_backbone_weight"] + found["fape_loss_sidechain_weight"] == 1


def test_the_initial_weights_are_those_that_the_training_started_from(events) -> None:
    lines = events(training={"initial_weights": "gone.pt"})
    (line,) = of(lines, "init_checkpoint_sha256sum")
    assert line["value"] == "1f" * 32  # of the made-up run


@pytest.mark.parametrize(("target", "evaluations"), [(0.1, 1), (0.25, 2), (0.9, 2)])
def test_the_run_ends_with_the_first_evaluation_that_reaches_the_target(
    events, target: float, evaluations: int
) -> None:
    lines = events(evaluation={"mode": "async", "target_lddt": target})
    accuracies = of(lines, "eval_accuracy")
    assert len(accuracies) == evaluations
    (end,) = of(lines, "run_stop")
    reached = accuracies[-1]["value"] >= target
    assert end["metadata"]["status"] == ("success" if reached else "aborted")
    assert reached == (target < 0.9)
    assert end["time_ms"] == accuracies[-1]["time_ms"]


def test_before_the_first_checkpoint_there_is_nothing_to_tell(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run()
    for mark in run.glob("weights/*/*.ready"):
        mark.unlink()
    with pytest.raises(InputError, match="checkpoint"):
        write_mlperf_log(run, None, run / "shards", tmp_path / "log")
