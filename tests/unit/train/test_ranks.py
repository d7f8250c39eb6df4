"""Several processes train as one, and end together, whatever happens to one of them.

The configuration clips the mean over two samples: with two ranks each float32 sum has the same two
terms as with one, so all numbers are equal to the last bit. (Where samples are clipped one by one,
scaling and adding are rounded once or twice; see tests/parity/test_data_parallel.py for that.)
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.unit.train.torchrun import Trainings
from tests.unit.train.trajectory import assert_identical, records

from scalefold.checkpoint.lock import writer_lock
from scalefold.checkpoint.read import checkpoints, load_training, load_weights
from scalefold.config.load import merge
from scalefold.shards.manifest import data_hash

GLOBAL = {"optimiser": {"clip_scope": "global"}}


@pytest.fixture
def trainings(micro_tree: dict[str, Any], shards: Path, tmp_path: Path) -> Trainings:
    return Trainings(tmp_path, shards, merge(micro_tree, GLOBAL))


@pytest.fixture(scope="module")
def alone(
    micro_tree: dict[str, Any], shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The run of one process that others are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    code, output = Trainings(folder, shards, merge(micro_tree, GLOBAL)).run(folder / "out")
    assert code == 0, output
    return folder / "out"


def steps(out: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoints(out)]


def assert_same_end(one: Path, other: Path) -> None:
    assert records(one) == records(other)
    assert steps(one)[-1] == steps(other)[-1]
    ours, theirs = checkpoints(one)[-1], checkpoints(other)[-1]
    assert_identical(load_weights(ours, "weights"), load_weights(theirs, "weights"))
    assert_identical(load_weights(ours, "averaged"), load_weights(theirs, "averaged"))
    assert_identical(load_training(ours), load_training(theirs))


def test_two_ranks_equal_one(trainings: Trainings, alone: Path, tmp_path: Path) -> None:
    code, output = trainings.run(tmp_path / "out", 2)
    assert code == 0, output
    assert_same_end(tmp_path / "out", alone)
    assert steps(tmp_path / "out") == [0, 2, 4, 6]
    # One of them speaks.
    assert output.count("training step 6/6") == 1
    assert output.count("step 6 of 6") == 1


def test_ranks_that_divide_the_state_write_and_read_any_checkpoint(
    trainings: Trainings, alone: Path, tmp_path: Path
) -> None:
    """Of a run whose ranks divide it, then do not but offload it, then divide and offload it."""
    out, whole = tmp_path / "out", trainings.tree
    divided = merge(whole, {"parallel": {"shard_optimiser": True}})
    offload = {"training": {"recomputation": "offload"}}
    for tree, size, fault in (
        (divided, 2, [{"step": 4, "what": "SIGKILL", "after": 2}]),
        (merge(whole, offload), 1, [{"step": 6, "what": "SIGKILL", "after": 4}]),
        (merge(divided, offload), 2, []),
    ):
        trainings.tree = tree
        code, output = trainings.run(out, size, *fault)
        assert (code != 0) == bool(fault), output
    assert steps(out) == [0, 2, 4, 6]
    assert_same_end(out, alone)


def test_a_killed_rank_then_all_killed_then_resumed_equals_uninterrupted(
    trainings: Trainings, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, output = trainings.run(out, 2, {"rank": 1, "step": 3, "what": "SIGKILL"})
    assert code == 1
    assert "rank 0: the exchange" in output
    assert "rank 1 gave no sign of life" in output
    assert "Signal 9 (SIGKILL)" in output  # the launcher's word on it
    assert steps(out) == [0, 2]
    code, _ = trainings.run(out, 2, {"step": 6, "what": "SIGKILL", "after": 4})
    assert code == 1
    assert steps(out) == [0, 2, 4]
    code, output = trainings.run(out, 2)
    assert code == 0, output
    assert_same_end(out, alone)


def test_a_rank_that_hangs_is_given_up_after_the_time_limit(
    trainings: Trainings, tmp_path: Path
) -> None:
    trainings.tree = merge(trainings.tree, {"training": {"exchange_timeout_seconds": 10}})
    launcher = trainings.start(tmp_path / "out", 2, {"rank": 1, "step": 3, "what": "SIGSTOP"})
    assert launcher.stdout is not None
    try:
        said = ""
        while "rank 1 gave no sign of life" not in said:
            said = launcher.stdout.readline()
            assert said, "all have ended"
        ranks = psutil.Process(launcher.pid).children()
        (stopped,) = (rank for rank in ranks if rank.status() == psutil.STATUS_STOPPED)
        stopped.kill()  # as the launcher does after 30 s
        launcher.communicate()
    finally:
        launcher.kill()
    assert launcher.returncode == 1
    assert steps(tmp_path / "out") == [0, 2]


def test_ranks_stop_in_order_when_their_launcher_is_killed(
    trainings: Trainings, tmp_path: Path
) -> None:
    trainings.tree = merge(trainings.tree, {"training": {"steps": 100_000, "checkpoint_every": 5}})
    out = tmp_path / "out"
    launcher = trainings.start(out, 2)
    while len(steps(out)) < 2:
        assert launcher.poll() is None
        time.sleep(0.1)
    launcher.kill()
    output, _ = launcher.communicate()  # until all that write to the pipe have ended
    # Rank 0 speaks. Either it notices first, or the other rank does and asks it to stop.
    assert "stopped by the end of the launcher" in output or "request of another" in output
    with writer_lock(out):
        pass


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGHUP"])
def test_a_signal_to_one_rank_stops_all_and_another_number_goes_on(
    name: str, trainings: Trainings, alone: Path, tmp_path: Path, without_nohup: None
) -> None:
    out = tmp_path / "out"
    code, output = trainings.run(out, 2, {"rank": 1, "step": 3, "what": name})
    assert code == 1  # the launcher's own; its summary has the processes'
    assert "exitcode  : 75" in output
    assert steps(out) == [0, 2, 3]
    assert "stopped at step 3 of 6" in output
    code, output = trainings.run(out, 1)
    assert code == 0, output
    assert_same_end(out, alone)


def test_a_damaged_sample_on_one_rank_keeps_the_steps_before_it(
    trainings: Trainings, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, output = trainings.run(out, 2, {"rank": 1, "step": 4, "what": "damaged"})
    assert code == 1
    assert output.count("error: msa-00000.arrow: row 7 is damaged") == 1
    assert "exitcode  : 2" in output
    assert steps(out) == [0, 2, 3]
    assert [record["step"] for record in records(out)] == [1, 2, 3]
    code, output = trainings.run(out, 2)
    assert code == 0, output
    assert_same_end(out, alone)


def test_a_stop_and_a_damaged_sample_of_one_step_end_all_ranks(
    trainings: Trainings, tmp_path: Path
) -> None:
    """Also after a step with a checkpoint, which no rank may then publish by itself."""
    out = tmp_path / "out"
    faults = {"rank": 0, "step": 3, "what": "SIGTERM"}, {"rank": 1, "step": 3, "what": "damaged"}
    code, output = trainings.run(out, 2, *faults)
    assert code == 1
    assert output.count("error: msa-00000.arrow: row 7 is damaged") == 1
    assert steps(out) == [0, 2]


@pytest.mark.parametrize(
    ("settings", "device", "error"),
    [
        ({"global_batch_size": 3}, "cpu", "training.global_batch_size 3 cannot be divided among 2"),
        ({"initial_weights": str(Path(__file__))}, "cpu", "training.initial_weights: "),
        ({}, "tpu", "--device 'tpu': expected auto, cpu, cuda"),
    ],
)
def test_what_is_wrong_on_all_ranks_is_said_once(
    trainings: Trainings, tmp_path: Path, settings: dict[str, Any], device: str, error: str
) -> None:
    trainings.tree, trainings.device = merge(trainings.tree, {"training": settings}), device
    code, output = trainings.run(tmp_path / "out", 2)
    assert code == 1
    (said,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert said.startswith(f"error: {error}")
    assert "exitcode  : 2" in output
    assert list((tmp_path / "out").glob("*")) == []


def test_a_bug_on_one_rank_is_told_by_the_others(trainings: Trainings, tmp_path: Path) -> None:
    code, output = trainings.run(tmp_path / "out", 2, {"rank": 1, "step": 2, "what": "bug"})
    assert code == 1
    assert "rank 1 ended with KeyError: 'a bug'" in output


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(
    trainings: Trainings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, output = trainings.run(out, 2, {"rank": 1, "step": 2, "what": "nan"})
    assert code == 0, output
    assert "step 2 skipped, not finite: see the other ranks" in output
    assert "rank 1: step 2 skipped, not finite: chain " in output
    assert ": loss terms fape" in output
    assert [record["skipped_steps"] for record in records(out)] == [0, 1, 1, 1, 1, 1]
    assert load_training(checkpoints(out)[-1])["optimiser"]["updates"] == 5


def test_a_target_ends_all_ranks_for_good(
    trainings: Trainings, shards: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    evaluation = {"mode": "async", "target_lddt": 0.8, "splits": ["train"]}
    trainings.tree = merge(trainings.tree, {"evaluation": evaluation, "training": {"steps": 1000}})
    code, output = trainings.run(out, 2, {"rank": 0, "step": 3, "what": data_hash(shards)})
    assert code == 0, output
    assert "target reached: mean lDDT-Cα of train 0.900 at step 0" in output
    reached = steps(out)
    assert 3 <= reached[-1] < 1000
    code, output = trainings.run(out, 1)
    assert code == 0, output
    assert steps(out) == reached


def test_of_two_trainings_in_one_folder_the_second_is_refused_until_the_first_is_gone(
    trainings: Trainings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    trainings.tree = merge(trainings.tree, {"training": {"steps": 100_000}})
    first = trainings.start(out)
    try:
        while not (out / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.1)
        code, output = trainings.run(out)
        assert code == 2
        assert f"another training run writes here (process {first.pid} on " in output
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    finally:
        first.kill()
        first.communicate()
    last = steps(out)[-1]
    trainings.tree = merge(trainings.tree, {"training": {"steps": last + 1}})
    code, output = trainings.run(out)
    assert code == 0, output
    assert steps(out)[-1] == last + 1
