"""The planner finds again what was recorded, to 10 %, also where it did not see the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from tests.unit.cli.conftest import run

from scalefold.config import Config, preset_config
from scalefold.engine.pass_memory import PassMemory
from scalefold.errors import InputError
from scalefold.plan.calibration import Calibration, fitted, read_steps
from scalefold.plan.exchanges import Exchanges, count_exchanges
from scalefold.plan.rows import Planner
from scalefold.plan.timing import Cluster, Timing

BENCHMARKS = Path(__file__).parents[3] / "docs/benchmarks"
H100 = Cluster("h100", 8, 320e9, 78.0, 1000.0, 2.0)
H200 = replace(H100, kind="h200", memory_gib=139.0)


def record(name: str) -> Any:
    return json.loads((BENCHMARKS / name).read_text("utf-8"))


def by_degree(exchange: str) -> dict[int, Any]:
    """The records of samples that are shared so, by number of GPUs."""
    found = record("dap-push-h100.json")
    two, four, collecting = found["runs"]
    if exchange == "push":
        return {2: two, 4: four}
    older = found["earlier"]["collectives"]
    keys = ("step_seconds_by_recycling", "gpu_work_by_recycling")
    return {2: {key: {"all": older[key]} for key in keys}, 4: collecting}


def exchanging(config: Config, exchange: Any) -> Config:
    parallel = config.parallel.model_copy(update={"exchange": exchange})
    return config.model_copy(update={"parallel": parallel})


@pytest.fixture(scope="module")
def config() -> Config:
    return preset_config("mlperf", {})


@pytest.fixture(scope="module")
def counted(config: Config) -> tuple[Exchanges, Exchanges]:
    return count_exchanges(config, "none", 8)


@pytest.fixture
def known(counted: tuple[Exchanges, Exchanges], monkeypatch: pytest.MonkeyPatch) -> Calibration:
    monkeypatch.setattr("scalefold.plan.timing.count_exchanges", lambda *_: counted)
    return Calibration.read([])


def test_exchanges_are_those_that_a_gpu_made(counted: tuple[Exchanges, Exchanges]) -> None:
    last, further = (exchanges.total() for exchanges in counted)
    sums = 2  # of the gradient, and of the step's numbers
    for run_ in record("dap-push-h100.json")["runs"]:
        one, two = run_["gpu_work_by_recycling"]["all"]
        assert one["exchanges"] == last + sums
        assert two["exchanges"] == last + further + sums


@pytest.mark.parametrize("degree", [2, 4])
def test_push_takes_what_it_took_on_gpus(config: Config, known: Calibration, degree: int) -> None:
    work = by_degree("push")[degree]["gpu_work_by_recycling"]["all"]
    one, two = (passes["exchange_seconds"] for passes in work)
    estimated = Timing(config, known, H100)._exchanged(known.steps[0].sizes, "none", degree)
    assert estimated == pytest.approx((one, two - one), rel=0.1)


@pytest.mark.parametrize("exchange", ["push", "collectives"])
@pytest.mark.parametrize("hidden", [None, 2, 4])
def test_shared_samples_take_what_was_recorded(
    config: Config, known: Calibration, exchange: Any, hidden: int | None
) -> None:
    """Each degree also as if it had not been recorded."""
    steps = [step for step in known.steps if hidden is None or step.dap != hidden]
    timing = Timing(exchanging(config, exchange), replace(known, steps=steps), H100)
    found = {n: r["step_seconds_by_recycling"] for n, r in by_degree(exchange).items()}
    recorded = {n: seconds["all"] for n, seconds in found.items()} | {1: found[4]["one"]}
    for degree in [hidden] if hidden else recorded:
        assert timing.sample(degree, "none") == pytest.approx(fmean(recorded[degree]), rel=0.1)


@pytest.mark.parametrize("hidden", [None, 2])
def test_two_h200_that_share_a_sample_take_what_was_recorded(
    config: Config, known: Calibration, hidden: int | None
) -> None:
    """Also as if degrees had been recorded on H100s only."""
    steps = [s for s in known.steps if (s.device, s.dap) != ("NVIDIA H200", hidden)]
    timing = Timing(config, replace(known, steps=steps), H200)
    recorded = record("dap-push-2xh200.json")["step_seconds_by_recycling"]["all"]
    assert timing.sample(2, "none") == pytest.approx(fmean(recorded), rel=0.1)


def test_push_is_taken_where_its_configuration_does_not_say_otherwise(
    config: Config, known: Calibration
) -> None:
    chosen, push, collectives = (
        Timing(exchanging(config, exchange), known, H100).sample(2, "none")
        for exchange in ("auto", "push", "collectives")
    )
    assert chosen == push < collectives


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_recomputation_takes_what_was_recorded(
    config: Config, known: Calibration, mode: Any
) -> None:
    recorded = {
        one["recomputation"]: one["mean_step_seconds"]
        for one in record("recomputation-h200.json")["variants"]
    }
    assert Timing(config, known, H200).sample(1, mode) == pytest.approx(recorded[mode], rel=0.1)


def test_recomputation_without_a_record_takes_that_of_another_gpu_with_the_same_samples(
    config: Config, known: Calibration
) -> None:
    """H100s have no record of ``selective``, and H200s have one of larger samples, too."""
    slower = {kind.kind: Timing(config, known, kind)._slower("selective") for kind in (H100, H200)}
    assert slower["h100"] == slower["h200"] < 1.2


def test_data_parallelism_takes_what_was_recorded(config: Config, known: Calibration) -> None:
    found = record("data-parallel-2xh200.json")
    two = config.model_copy(update={"training": config.training.model_copy(
        update={"global_batch_size": 2})})  # fmt: skip
    timing = Timing(two, known, H200)
    recorded = fmean(found["step_seconds_by_recycling"]["all"])
    assert timing.step(2, 1, "none") == pytest.approx(recorded, rel=0.1)
    efficiency = timing.step(1, 1, "none") / 2 / timing.step(2, 1, "none")
    assert efficiency == pytest.approx(found["efficiency"], abs=0.01)


def test_the_calibration_is_in_the_records(known: Calibration) -> None:
    """All that names a file of the repository."""
    cited = 0
    for step in known.steps:
        file = Path(__file__).parents[3] / step.source.split(",")[0]
        if file.suffix == ".json":
            cited += 1
            content = json.dumps(json.loads(file.read_text("utf-8")))
            assert json.dumps(step.seconds) in content
            assert step.gib is None or str(step.gib) in content
    assert cited > 5


def test_the_published_scaling_follows_the_same_law(config: Config, known: Calibration) -> None:
    """From the step without DAP and that of two GPUs: 1.6, 2.4 and 2.8 times as fast."""
    alone = 1.81
    seconds = {1: alone, 2: alone / 1.6, 4: alone / 2.4, 8: alone / 2.8}
    fixed, shared = fitted(np.array([1.0, 0.5]), np.array([seconds[1], seconds[2]]))
    for degree in (4, 8):
        assert fixed + shared / degree == pytest.approx(seconds[degree], rel=0.1)
    timing = Timing(config, known, H100)
    many = fixed + shared / 8 + timing.gradient_sum(2048) + known.wait_of_slowest(256)
    assert many == pytest.approx(known.published["step_seconds"], rel=0.1)


def test_rows_divide_the_samples_among_the_gpus(
    config: Config, known: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalefold.plan.rows.pass_memory", lambda *_: PassMemory(40 * 2**30, 0))
    planner = Planner(config, H200, known)
    for gpus in (1, 7, 512, 2080):
        for row in planner.rows(gpus):
            assert row.used == row.data * row.dap <= gpus
            assert row.data * row.samples == config.training.global_batch_size
            assert row.memory_gib is not None
            assert row.memory_gib <= H200.memory_gib
            assert ("network" in row.extrapolated) == (row.used > 8)
    assert planner.fastest(8).step_seconds < planner.fastest(1).step_seconds / 7
    with pytest.raises(InputError, match="2 GPUs of 1 GiB"):
        Planner(config, replace(H200, memory_gib=1.0), known).fastest(2)


def test_auto_keeps_a_reserve_and_another_setting_needs_none(
    config: Config, known: Calibration
) -> None:
    peak = next(step.gib for step in known.of_kind("h200") if step.gib)
    for setting, expected in {"auto": "selective", "none": "none"}.items():
        training = config.training.model_copy(update={"recomputation": setting})
        chosen = config.model_copy(update={"training": training})
        row = Planner(chosen, replace(H200, memory_gib=peak + 1), known).fastest(1)
        assert row.recomputation == expected


def test_steps_of_another_gpu_need_a_record(
    config: Config, known: Calibration, tmp_path: Path
) -> None:
    other = replace(H200, kind="B300")
    with pytest.raises(InputError, match="B300"):
        Timing(config, known, other)
    faster = by_degree("push")[4] | {"device": "NVIDIA B300", "exchange": "push"}
    file = tmp_path / "scaling.json"
    file.write_text(json.dumps(faster))
    timing = Timing(config, Calibration.read([file]), other)
    assert timing.sample(1, "none") == pytest.approx(
        fmean(faster["step_seconds_by_recycling"]["one"]), rel=0.01
    )
    assert timing.recorded("none", 4)
    assert not timing.recorded("none", 2)
    file.write_text("{}x")
    with pytest.raises(InputError, match=file.name):
        list(read_steps(file))


def test_the_command_says_what_it_assumes(known: Calibration) -> None:
    asked = ["plan", "--gpus", "8", "--kind", "h100", "--price", "2", "--watts", "500"]
    result = run(*asked, "--format", "json", "-s", "training.steps=3600")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["assumed"]["watts"] == 500
    assert [row["dap"] for row in found["rows"]] == [1, 2, 4, 8]
    for row in found["rows"]:
        assert row["gpu_hours"] == pytest.approx(8 * row["step_seconds"])
        assert row["cost"] == pytest.approx(2 * row["gpu_hours"])
        assert row["kilowatt_hours"] == pytest.approx(row["gpu_hours"] / 2)
    assert "no step" in run("plan", "--kind", "abacus", "--memory-gib", "1").stderr
    assert "error: preset tiny: no step" in run("plan", "--preset", "tiny").stderr


def test_a_run_is_planned_by_its_own_configuration(known: Calibration, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        "run_name: my\npreset: mlperf\ntraining: {steps: 360, recomputation: full}\n"
        "data: {chains: chains.tsv, mirrors: {mmcif: [a], alignments: [b]}}\n"
    )
    result = run("plan", "--gpus", "1", "-c", str(file), "--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (row,) = found["rows"]
    assert (found["steps"], row["recomputation"]) == (360, "full")
    assert "either --config" in run("plan", "-c", str(file), "--preset", "tiny").stderr


def test_a_machine_without_triton_says_what_memory_it_counts(
    known: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalefold.plan.rows.triton_version", lambda: None)
    monkeypatch.setattr("scalefold.plan.rows.pass_memory", lambda *_: PassMemory(2**30, 2**30))
    result = run("plan", "--gpus", "8", "-s", "training.recomputation=selective")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("plain PyTorch") == 1
    for wrong in (["--kind", "foo"], ["--kind", "foo", "--memory-gib", "80"], ["--preset", "tiny"]):
        error = run("plan", *wrong)
        assert error.exit_code == 2
        assert error.stderr.startswith("error: ")
    assert "plain PyTorch" not in run("plan", "--gpus", "1").stderr
