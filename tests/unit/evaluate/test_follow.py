"""Evaluation beside a training: when it evaluates, and when it ends."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalefold.checkpoint.early_stopping import TargetReached
from scalefold.checkpoint.lock import FAILED_MARK, sign_of_life, writer_lock
from scalefold.config import make_config
from scalefold.errors import InputError
from scalefold.evaluate import follow as module
from scalefold.evaluate.follow import follow
from scalefold.io.atomic import write_bytes

CONFIG = {
    "preset": "tiny",
    "data": {"chains": "none.tsv", "mirrors": {"mmcif": ["none"], "alignments": ["none"]}},
    "training": {"steps": 4, "checkpoint_every": 2},
    "evaluation": {"mode": "async", "target_lddt": 0.5},
}
SHORT = 0.5
"""Seconds of patience."""


class Folder:
    """A training's folder, whose checkpoints a test publishes itself."""

    def __init__(self, root: Path) -> None:
        self.training, self.shards, self.out = root / "training", root / "shards", root / "out"
        for folder in (self.training, self.shards, self.out):
            folder.mkdir()
        (self.shards / "manifest.json").write_text("{}")
        self.evaluated: list[str] = []

    def publish(self, step: int, data: str | None = None) -> None:
        name = f"step-{step:08d}"
        (self.training / name).mkdir()
        data = module.data_hash(self.shards) if data is None else data
        facts = f'{{"data_manifest_sha256": "{data}"}}'
        (self.training / name / "checkpoint.json").write_text(facts)
        (self.training / f"{name}.ready").touch()

    def follow(self, patience: float = SHORT) -> list[int]:
        return follow(
            make_config(CONFIG), self.training, self.shards, self.out, patience_seconds=patience
        )

    def beside(self, work: Callable[[], None]) -> list[int]:
        """Follow while a training is at work, which then gives its lock back."""

        def train() -> None:
            with writer_lock(self.training):
                work()

        training = threading.Thread(target=train)
        training.start()
        steps = self.follow()
        training.join()
        return steps


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    made = Folder(tmp_path)

    def evaluate(config: object, path: Path, shards: object, out: Path, **_: Any) -> None:
        made.evaluated.append(path.name)
        if path.with_name(path.name + ".bad").exists():
            raise InputError("none of 3 chains could be scored")
        write_bytes(out, b"{}")

    monkeypatch.setattr(module, "evaluate_weights", evaluate)
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr("scalefold.checkpoint.lock.BEAT_SECONDS", 0.1)
    return made


def test_checkpoints_are_evaluated_as_they_come_until_the_last(folder: Folder) -> None:
    def work() -> None:
        for step in (0, 2, 4):
            time.sleep(3 * SHORT)  # longer than the patience: only the lock says that it goes on
            folder.publish(step)

    assert folder.beside(work) == [0, 2, 4]


def test_after_training_all_are_evaluated_at_once(folder: Folder) -> None:
    """As where there is one GPU, which the training has had."""
    for step in (0, 2, 4):
        folder.publish(step)
    assert folder.follow(patience=600) == [0, 2, 4]
    assert folder.follow(patience=600) == []


def test_a_training_that_does_not_begin_is_not_waited_for(folder: Folder) -> None:
    assert folder.follow() == []


def test_a_training_that_fails_ends_it(folder: Folder) -> None:
    assert folder.beside(lambda: folder.publish(0)) == [0]


def test_a_training_that_is_marked_as_failed_is_not_waited_for(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS_TO_RETRY", SHORT)
    folder.publish(0)
    (folder.training / FAILED_MARK).touch()
    assert folder.follow(patience=600) == [0]


def test_a_training_that_is_tried_again_is_waited_for(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS_TO_RETRY", SHORT)
    mark = folder.training / FAILED_MARK
    mark.touch()

    def try_again() -> None:
        mark.unlink()
        time.sleep(3 * SHORT)
        for step in (0, 4):
            folder.publish(step)

    training = threading.Timer(SHORT / 2, try_again)
    training.start()
    assert folder.follow(patience=600) == [0, 4]


def test_a_training_that_was_killed_ends_it(folder: Folder) -> None:
    folder.publish(0)
    with writer_lock(folder.training):
        left = {path: path.read_bytes() for path in (folder.training / "lock").iterdir()}
    for path, content in left.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)  # as kill -9 leaves it
    assert sign_of_life(folder.training) != ""
    assert folder.follow() == [0]


def test_the_target_ends_it(folder: Folder) -> None:
    folder.publish(0)
    data = module.data_hash(folder.shards)
    TargetReached(0, "validation", 0.6, data).write(folder.training)
    assert folder.follow(patience=600) == [0]


def test_checkpoints_of_other_data_or_steps_are_left_out(folder: Folder) -> None:
    folder.publish(0, data="others")
    folder.publish(1)
    folder.publish(4)
    assert folder.follow(patience=600) == [4]


def test_evaluations_of_other_settings_or_an_earlier_checkpoint_are_made_again(
    folder: Folder,
) -> None:
    for step in (0, 2, 4):
        folder.publish(step)
        evaluation: dict[str, Any] = {"seed": 5 if step == 0 else 0, "mean": {"validation": {}}}
        write_bytes(module.evaluation_path(folder.out, step), json.dumps(evaluation).encode())
    os.utime(module.evaluation_path(folder.out, 2), (1, 1))
    assert folder.follow(patience=600) == [0, 2]


def test_one_that_cannot_be_evaluated_is_tried_once(folder: Folder) -> None:
    for step in (0, 2, 4):
        folder.publish(step)
    (folder.training / "step-00000002.bad").touch()
    assert folder.follow(patience=600) == [0, 4]
    assert folder.evaluated == ["step-00000000", "step-00000002", "step-00000004"]
