"""Checkpoints are written beside the training: of their step, whole, and never in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.quietly import train_quietly

from scalefold.checkpoint.background import Background
from scalefold.checkpoint.read import checkpoints, load_training, load_weights
from scalefold.config import Config
from scalefold.errors import InputError
from scalefold.loader.loader import Batch, TrainingLoader
from scalefold.train import training_files
from scalefold.train.metrics import MetricsLog

PATIENCE_SECONDS = 1200.0


def _wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


@pytest.fixture
def before_saving(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Does something first when the checkpoint of a step is to be written."""
    save = training_files.save

    def install(chosen: int, first: Callable[[], None]) -> None:
        def delayed(folder: Path, *, step: int, **more: Any) -> Path:
            if step == chosen:
                first()
            return save(folder, step=step, **more)

        monkeypatch.setattr(training_files, "save", delayed)

    return install


def test_a_failure_is_raised_by_the_next_call_and_once() -> None:
    def fail() -> None:
        raise InputError("no room")

    background, done = Background("test"), threading.Event()
    background.start(fail)
    with pytest.raises(InputError, match="no room"):
        background.start(done.set)
    background.start(done.set)
    background.finish()
    assert done.is_set()
    background.check()
    background.start(fail)
    with pytest.raises(InputError, match="no room"):
        background.close()


def test_looking_at_a_job_does_not_wait_for_it() -> None:
    background, go_on = Background("test"), threading.Event()
    background.start(lambda: _wait_for(go_on))
    background.check()
    go_on.set()
    background.close()


def test_steps_go_on_while_a_checkpoint_is_written_and_do_not_change_it(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    before_saving: Callable[[int, Callable[[], None]], None],
) -> None:  # fmt: skip
    """The checkpoint of step 2 is not begun before step 3 is made."""
    plain = train_quietly(micro, shards, tmp_path / "plain").checkpoint.with_name("step-00000002")
    write, later = MetricsLog.write, threading.Event()

    def noticing(log: MetricsLog, record: dict[str, Any]) -> None:
        write(log, record)
        if record["step"] == 3:
            later.set()

    monkeypatch.setattr(MetricsLog, "write", noticing)
    before_saving(2, lambda: _wait_for(later))
    train_quietly(micro, shards, tmp_path / "beside")
    beside = tmp_path / "beside" / plain.name
    for which in ("weights", "averaged"):
        expected = load_weights(plain, which)
        assert all(torch.equal(w, expected[n]) for n, w in load_weights(beside, which).items())
    torch.testing.assert_close(load_training(beside), load_training(plain), rtol=0, atol=0)


def test_a_checkpoint_that_cannot_be_written_ends_the_training(
    micro: Config, shards: Path, tmp_path: Path,
    before_saving: Callable[[int, Callable[[], None]], None],
) -> None:  # fmt: skip
    def no_room() -> None:
        raise InputError("step-00000002: no space left on device")

    before_saving(2, no_room)
    with pytest.raises(InputError, match="no space left"):
        train_quietly(micro, shards, tmp_path)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000000"]
    before_saving(2, lambda: None)
    assert train_quietly(micro, shards, tmp_path, resume=True).completed


def test_a_log_that_cannot_be_brought_to_the_disk_leaves_no_checkpoint(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = MetricsLog.sync

    def failing(log: MetricsLog) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if checkpoints(tmp_path):
            raise InputError("metrics.jsonl: no space left on device")
        sync(log)

    monkeypatch.setattr(MetricsLog, "sync", failing)
    with pytest.raises(InputError, match=r"metrics\.jsonl: no space left"):
        train_quietly(micro, shards, tmp_path)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000000"]


def test_what_is_being_written_when_a_training_fails_is_written_to_its_end(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    before_saving: Callable[[int, Callable[[], None]], None],
) -> None:  # fmt: skip
    deliver, failed = TrainingLoader.__next__, threading.Event()

    def failing(loader: TrainingLoader) -> Batch:
        batch = deliver(loader)
        if batch.step == 2:
            failed.set()
            raise RuntimeError("step 3 is never made")
        return batch

    monkeypatch.setattr(TrainingLoader, "__next__", failing)
    before_saving(2, lambda: _wait_for(failed))
    with pytest.raises(RuntimeError, match="step 3 is never made"):
        train_quietly(micro, shards, tmp_path)
    assert checkpoints(tmp_path)[-1].name == "step-00000002"
