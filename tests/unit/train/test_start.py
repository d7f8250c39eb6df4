"""A training: what it writes, how it ends, what it refuses."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.unit.train.quietly import train_quietly
from tests.unit.train.trajectory import assert_identical

from scalefold.checkpoint.lock import LOCK_FOLDER
from scalefold.checkpoint.published import steps_made_from
from scalefold.checkpoint.read import FormerData, checkpoints, load_weights, read_metadata
from scalefold.config import Config, make_config, run_key
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.loader.loader import Batch, TrainingLoader
from scalefold.shards.manifest import Manifest
from scalefold.train import start
from scalefold.train.metrics import MetricsLog
from scalefold.train.restart_warnings import new_data_warnings
from scalefold.train.sessions import read_sessions
from scalefold.train.signals import stop_on_signals
from scalefold.train.skipped_steps import DivergedError
from scalefold.train.step import TrainingStep
from scalefold.weights import export_weights


def _records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_whole_run(
    micro: Config, shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        result = train_quietly(micro, shards, tmp_path)
    assert (result.step, result.completed, result.skipped_steps) == (6, True, 0)
    published = checkpoints(tmp_path)
    assert [p.name for p in published] == [f"step-{s:08d}" for s in (0, 2, 4, 6)]
    assert result.checkpoint == published[-1]

    first, last = load_weights(published[0]), load_weights(published[-1])
    assert all(torch.equal(a, b) for a, b in zip(first.values(),
               load_weights(published[0], "weights").values()))  # fmt: skip
    assert any(not torch.equal(first[name], last[name]) for name in first)
    metadata = read_metadata(published[-1])
    assert metadata.config == micro.model_dump(mode="json")

    records = _records(tmp_path)
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6]
    assert {
        "step", "samples", "loss", "loss/fape", "loss/chi", "loss/distogram", "loss/masked_msa",
        "loss/plddt", "lddt_ca", "grad_norm", "learning_rate", "recycling", "step_seconds",
        "samples_per_second", "loader_wait_seconds", "lateness_steps", "time", "skipped_steps",
    } == records[0].keys()  # fmt: skip
    assert records[-1]["samples"] == 12
    assert [r["learning_rate"] for r in records[:3]] == [5e-4, 1e-3, 1e-3]
    assert "step 6/6  mean of 6 steps: loss" in caplog.text  # plain lines: there is no terminal
    [drawn] = [message for message in caplog.messages if "train chains are drawn" in message]
    [trained] = read_sessions(tmp_path, [])
    said = f"{trained.train_chains_drawn} of {trained.train_chains} train chains are drawn "
    assert drawn.startswith(said)

    # The whole run again is nothing to do; without --resume it is refused.
    caplog.clear()
    with caplog.at_level(logging.INFO):
        again = train_quietly(micro, shards, tmp_path, resume=True)
    assert "step-00000006: complete, nothing is left to do: training.steps is 6" in caplog.text
    assert "continuing" not in caplog.text
    assert (again.step, again.checkpoint) == (6, result.checkpoint)
    assert _records(tmp_path) == records
    with pytest.raises(InputError, match=r"step-00000006.*--resume"):
        train_quietly(micro, shards, tmp_path)


def test_more_steps_may_be_added(micro_tree: dict[str, Any], shards: Path, tmp_path: Path) -> None:
    for steps in (2, 3):
        config = make_config(merge(micro_tree, {"training": {"steps": steps}}))
        result = train_quietly(config, shards, tmp_path, resume=True)
        assert (result.step, result.completed) == (steps, True)
    assert [r["step"] for r in _records(tmp_path)] == [1, 2, 3]


def test_a_full_size_model_on_a_cpu_is_warned_of(
    micro_tree: dict[str, Any],
    shards: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config(merge(micro_tree, {"training": {"steps": 1}}))
    for full_size in (start.FULL_SIZE, 0):
        caplog.clear()
        monkeypatch.setattr(start, "FULL_SIZE", full_size)
        train_quietly(config, shards, tmp_path / str(full_size))
        assert ("on a CPU" in caplog.text) == (full_size == 0)


def test_a_stop_request_ends_with_a_checkpoint(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal, sent while step 3 is being logged."""
    write = MetricsLog.write

    def interrupting(self: MetricsLog, record: dict[str, Any]) -> None:
        write(self, record)
        if record["step"] == 3:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(MetricsLog, "write", interrupting)
    with stop_on_signals() as stop:
        result = train_quietly(micro, shards, tmp_path, stop=stop)
    assert stop.reason == "SIGUSR1"
    assert (result.step, result.completed) == (3, False)
    assert result.checkpoint.name == "step-00000003"
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_signals_are_turned_into_requests_and_a_second_interrupt_ends(without_nohup: None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        with stop_on_signals() as stop:
            assert not stop.is_set()
            signal.raise_signal(number)
            assert stop.is_set()
            assert stop.reason == number.name
            signal.raise_signal(signal.SIGTERM)  # a scheduler's second signal is no emergency
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_pruning_and_log_interval(micro_tree: dict[str, Any], shards: Path, tmp_path: Path) -> None:
    change = {"training": {"keep_checkpoints": 1, "log_every": 4}}
    train_quietly(make_config(merge(micro_tree, change)), shards, tmp_path)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000006"]
    assert [r["step"] for r in _records(tmp_path)] == [1, 4, 6]


def test_diverged_weights_stop_the_run_and_are_never_published(
    micro_tree: dict[str, Any], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """NaN put into the weights after step 2: later steps are skipped, named, then an error."""
    config = make_config(
        merge(micro_tree, {"training": {"max_non_finite_steps": 1, "checkpoint_every": 10}})
    )
    assemble, call = start.assemble, TrainingStep.__call__

    def poisoned(*args: Any) -> Any:
        parts = assemble(*args)
        count = iter(range(100))

        def poisoning(step: TrainingStep, *arguments: Any) -> Any:
            if next(count) == 2:
                parts.parameters.by_name(parts.parameters.master)[
                    "aux_heads.distogram.linear.bias"
                ][0] = torch.nan
            return call(step, *arguments)

        monkeypatch.setattr(TrainingStep, "__call__", poisoning)
        return parts

    monkeypatch.setattr(start, "assemble", poisoned)
    with pytest.raises(DivergedError) as error:
        train_quietly(config, shards, tmp_path)
    assert "training stopped at step 4: 2 steps in a row" in str(error.value)
    assert "loss terms distogram" in str(error.value)
    assert "chain 5pti_A" in caplog.text or "chain 1a8o_A" in caplog.text
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000000"]
    records = _records(tmp_path)
    assert [r["skipped_steps"] for r in records] == [0, 0, 1]
    assert records[-1]["loss"] is None


def test_skipped_steps_in_a_row_are_counted_across_a_resume(
    micro_tree: dict[str, Any], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assemble, call = start.assemble, TrainingStep.__call__

    def spoilt(*args: Any) -> Any:
        """Training whose gradients are not finite, and whose weights stay as they are."""
        parts = assemble(*args)
        master = parts.parameters.master
        (bias,) = parts.parameters.by_name(master)["aux_heads.distogram.linear.bias"][:1]

        def spoiling(step: TrainingStep, *arguments: Any) -> Any:
            kept = bias.clone()
            bias.fill_(torch.nan)
            record = call(step, *arguments)
            bias.copy_(kept)
            return record

        monkeypatch.setattr(TrainingStep, "__call__", spoiling)
        return parts

    monkeypatch.setattr(start, "assemble", spoilt)
    two = {"training": {"max_non_finite_steps": 2, "steps": 2}}
    train_quietly(make_config(merge(micro_tree, two)), shards, tmp_path)
    more = {"training": {"max_non_finite_steps": 2, "steps": 6}}
    with pytest.raises(DivergedError, match="step 3"):
        train_quietly(make_config(merge(micro_tree, more)), shards, tmp_path, resume=True)


def test_a_training_that_another_has_taken_over_publishes_nothing_more(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MetricsLog.write

    def overtaken(log: MetricsLog, record: dict[str, Any]) -> None:
        write(log, record)
        if record["step"] == 3:
            while not (tmp_path / "step-00000002.ready").exists():
                time.sleep(0.01)
            (tmp_path / LOCK_FOLDER / "2").touch()

    monkeypatch.setattr(MetricsLog, "write", overtaken)
    with pytest.raises(InputError, match="another training run"):
        train_quietly(micro, shards, tmp_path)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000000", "step-00000002"]
    assert not list(tmp_path.glob("step-*.tmp.*"))


def test_a_gpu_too_small_is_explained(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever asks for memory in the course of steps, torch raises the same."""
    told = "CUDA out of memory. Tried to allocate 3.12 GiB. If reserved but unallocated memory is"

    def exhausting(_: TrainingLoader) -> Batch:
        raise torch.OutOfMemoryError(f"{told} large try setting PYTORCH_ALLOC_CONF")

    monkeypatch.setattr(TrainingLoader, "__next__", exhausting)
    with pytest.raises(InputError, match=r"3\.12 GiB") as e:
        train_quietly(micro, shards, tmp_path)
    assert "training.recomputation is none (none, selective, full, offload:" in str(e.value)
    assert "crop_size" in str(e.value)
    assert "PYTORCH_ALLOC_CONF" not in str(e.value)
    assert checkpoints(tmp_path)[-1].name == "step-00000000"


def test_initial_weights_from_a_file_and_from_a_checkpoint(
    micro: Config, micro_tree: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    trained = train_quietly(micro, shards, tmp_path / "first").checkpoint
    averaged = load_weights(trained)
    export_weights(averaged, micro.model, tmp_path / "weights.pt")
    for number, source in enumerate((trained, tmp_path / "weights.pt")):
        change = {"training": {"initial_weights": str(source), "steps": 1}, "seed": 5}
        out = tmp_path / f"next{number}"
        train_quietly(make_config(merge(micro_tree, change)), shards, out)
        for which in ("weights", "averaged"):  # the average of no update is what it started from
            started = load_weights(out / "step-00000000", which)
            assert all(torch.equal(started[name], averaged[name]) for name in averaged)
    wrong = merge(micro_tree, {"training": {"initial_weights": str(trained)}, "model": {"c_m": 16}})
    with pytest.raises(InputError, match="step-00000006"):
        train_quietly(make_config(wrong), shards, tmp_path / "wrong")


def test_initial_weights_that_were_replaced_under_the_same_name_are_another_training(
    micro: Config,
    micro_tree: dict[str, Any],
    shards: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trained = train_quietly(micro, shards, tmp_path / "first").checkpoint
    given, out = tmp_path / "given.pt", tmp_path / "out"
    averaged = [path / "averaged.pt" for path in (trained.with_name("step-00000000"), trained)]
    before, now = (read_metadata(path.parent).files[path.name].sha256 for path in averaged)
    change = {"training": {"initial_weights": str(given), "steps": 1}}
    config = make_config(merge(micro_tree, change))

    shutil.copy(averaged[0], given)
    first = train_quietly(config, shards, out).checkpoint
    assert read_metadata(first).initial_weights_sha256 == before
    given.touch()  # another time, the same weights: complete
    assert train_quietly(config, shards, out, resume=True, set_aside=True).checkpoint == first

    given.unlink()
    with pytest.raises(InputError, match=r"training\.initial_weights: .*given\.pt"):
        train_quietly(config, shards, out, resume=True)
    given.write_bytes(averaged[1].read_bytes()[:-100])
    with pytest.raises(InputError, match=r"training\.initial_weights: .*given\.pt"):
        train_quietly(config, shards, out, resume=True, set_aside=True)
    assert not (out / "replaced").exists()  # nothing is moved away for weights that are damaged

    shutil.copy(averaged[1], given)
    said = f"initial weights: sha256 {before[:12]} in the checkpoint, {now[:12]} now"
    with pytest.raises(InputError, match=said):
        train_quietly(config, shards, out, resume=True)
    train_quietly(config, shards, out, resume=True, set_aside=True)
    assert said in caplog.text
    (kept,) = (out / "replaced").glob("*/step-00000000")
    for begun, source in ((kept, averaged[0].parent), (out / "step-00000000", trained)):
        weights, expected = load_weights(begun), load_weights(source)
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_training_goes_on_with_other_data_if_it_may(
    micro: Config, micro_tree: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "out", tmp_path / "shards"
    first = train_quietly(micro, shards, out).checkpoint
    last = micro.training.steps
    shutil.copytree(shards, other)
    manifest = Manifest.read(other)
    sha256 = dataclasses.replace(manifest, counts={**manifest.counts, "more": 1}).write(other)
    change = {"training": {"steps": last + 1}}
    assert list(new_data_warnings(out, shards, micro)) == []
    (said,) = new_data_warnings(out, other, micro)
    assert "training.accept_new_data" in said
    assert f"training.steps to more than {last}" in said
    accepting = make_config(merge(micro_tree, {"training": {"accept_new_data": True}}))
    (said,) = new_data_warnings(out, other, accepting)
    assert f"training.steps to more than {last}" in said
    with pytest.raises(InputError, match="--accept-new-data"):
        train_quietly(make_config(merge(micro_tree, change)), other, out, resume=True)
    change["training"]["accept_new_data"] = True
    config = make_config(merge(micro_tree, change))
    assert run_key(config) == run_key(micro)
    assert list(new_data_warnings(out, other, config)) == []
    for set_aside in (False, True):  # as by hand, and as the workflow
        change["training"]["steps"] += 1
        config = make_config(merge(micro_tree, change))
        checkpoint = train_quietly(config, other, out, resume=True, set_aside=set_aside).checkpoint
        metadata = read_metadata(checkpoint)
        assert metadata.data_manifest_sha256 == sha256
        before = read_metadata(first).data_manifest_sha256
        assert metadata.former_data == [FormerData(last, before)]
    assert not (out / "replaced").exists()
    steps = steps_made_from(out, sha256, None)
    assert {0, last, last + 3} <= set(steps)
    assert last + 3 not in steps_made_from(out, before, None)


def test_a_checkpoint_of_another_model_is_refused(
    micro: Config,
    micro_tree: dict[str, Any],
    shards: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    train_quietly(micro, shards, tmp_path)
    before = _records(tmp_path)
    other = make_config(merge(micro_tree, {"model": {"c_z": 16}, "training": {"steps": 9}}))
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(InputError, match=r"model\.c_z.*\b8\b.*\b16\b"),
    ):
        train_quietly(other, shards, tmp_path, resume=True)
    assert "continuing from" not in caplog.text
    assert _records(tmp_path) == before


def test_no_chain_to_train_on_is_found_before_anything_is_written(
    micro_tree: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    change = {"sampling": {"max_resolution_angstrom": 0.1, "allow_unknown_resolution": False}}
    with pytest.raises(InputError, match=r"training chain.*\b2\b"):
        train_quietly(make_config(merge(micro_tree, change)), shards, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_live_line_on_a_terminal(micro: Config, shards: Path, tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    train_quietly(micro, shards, tmp_path, console=console)
    shown = screen.getvalue()
    assert "6/6" in shown
    for part in ("loss", "lDDT-Cα", "samples/s", "left"):
        assert part in shown


def test_steps_before_an_unusable_sample_are_kept(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader meets a damaged row at step 4; the three steps before it are in a checkpoint."""
    deliver = TrainingLoader.__next__

    def damaged(loader: TrainingLoader) -> Batch:
        batch = deliver(loader)
        if batch.step == 3:
            raise InputError("msa-00000.arrow: row 7 is damaged")
        return batch

    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoader, "__next__", damaged)
        with pytest.raises(InputError, match="row 7 is damaged"):
            train_quietly(micro, shards, tmp_path / "run")
    assert checkpoints(tmp_path / "run")[-1].name == "step-00000003"
    assert [r["step"] for r in _records(tmp_path / "run")] == [1, 2, 3]

    # Once the shard is whole again, the run goes on as if nothing had been.
    resumed = train_quietly(micro, shards, tmp_path / "run", resume=True)
    plain = train_quietly(micro, shards, tmp_path / "plain")
    assert_identical(load_weights(resumed.checkpoint), load_weights(plain.checkpoint))
