"""An evaluation that reaches the target ends the training, for good."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.unit.train.quietly import train_quietly

from scalefold.checkpoint.early_stopping import TargetReached, read_end
from scalefold.checkpoint.read import (
    checkpoint_path,
    checkpoints,
    load_weights,
    read_metadata,
    ready_mark,
)
from scalefold.checkpoint.write import save
from scalefold.config import Config, make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.evaluate.run import evaluate_weights
from scalefold.features.contract import Features
from scalefold.model import AlphaFold
from scalefold.shards.manifest import data_hash
from scalefold.train.metrics import MetricsLog
from scalefold.train.start import TrainingResult

QUIET = Console(file=io.StringIO())


@pytest.fixture
def targeted(micro_tree: dict[str, Any]) -> Any:
    def make(target: float | None, splits: tuple[str, ...] = ("train",), **training: int) -> Config:
        evaluation = {"mode": "async", "target_lddt": target, "splits": splits, "recycling": 0}
        return make_config(merge(micro_tree, {"evaluation": evaluation, "training": training}))

    return make


def _train(config: Config, shards: Path, out: Path) -> TrainingResult:
    return train_quietly(config, shards, out, resume=True)


def test_training_ends_when_an_evaluation_beside_it_reaches_the_target(
    targeted: Any, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = targeted(0.01)
    out = tmp_path / "training"
    monkeypatch.setattr("scalefold.checkpoint.early_stopping._SECONDS_BETWEEN_LOOKS", 0.0)
    write = MetricsLog.write

    def evaluating(self: MetricsLog, record: dict[str, Any]) -> None:
        write(self, record)
        if record["step"] == 3:
            evaluate_weights(
                config, checkpoint_path(out, 2), shards, tmp_path / "e.json", console=QUIET
            )

    monkeypatch.setattr(MetricsLog, "write", evaluating)
    result = _train(config, shards, out)
    assert (result.step, result.completed) == (3, True)
    assert result.end is not None
    assert (result.end.step, result.end.split) == (2, "train")
    assert result.end.lddt_ca >= 0.01
    assert ready_mark(result.checkpoint).exists()
    assert [path.name for path in checkpoints(out)] == [f"step-{s:08d}" for s in (0, 2, 3)]

    # The evaluation in the midst of it has changed nothing of the training.
    alone = _train(targeted(None, steps=3), shards, tmp_path / "alone").checkpoint
    ours, theirs = (load_weights(path, "weights") for path in (result.checkpoint, alone))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    again = _train(config, shards, out)
    assert (again.step, again.completed, again.end) == (3, True, result.end)
    # A higher target has not been reached, and none means all steps.
    assert _train(targeted(0.999, steps=4), shards, out).step == 4
    assert _train(targeted(None, steps=5), shards, out).step == 5


def test_no_message_below_the_target_or_of_another_split(
    targeted: Any, shards: Path, tmp_path: Path
) -> None:
    path = _train(targeted(None, steps=1), shards, tmp_path / "training").checkpoint
    for config, splits in ((targeted(1.0), None), (targeted(0.0, ("validation",)), ["train"])):
        evaluate_weights(config, path, shards, tmp_path / "e.json", splits=splits, console=QUIET)
        assert not (path.parent / TargetReached.file).exists()


def test_a_mean_without_the_chains_that_failed_is_not_the_target(
    targeted: Any, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = _train(targeted(None, steps=1), shards, tmp_path / "training").checkpoint
    forward = AlphaFold.forward

    def exhausting(model: AlphaFold, features: Features, *others: Any) -> Any:
        if features["aatype"].shape[1] == 58:
            raise torch.OutOfMemoryError
        return forward(model, features, *others)

    with monkeypatch.context() as patch:
        patch.setattr(AlphaFold, "forward", exhausting)
        evaluate_weights(targeted(0.0), path, shards, tmp_path / "e.json", console=QUIET)
    assert not (path.parent / TargetReached.file).exists()
    assert "not counted as the target: it lacks chains that failed:\n  5pti_A" in caplog.text
    evaluate_weights(targeted(0.0), path, shards, tmp_path / "e.json", console=QUIET)
    assert (path.parent / TargetReached.file).exists()


def test_an_evaluation_that_cannot_tell_the_training_is_written_and_not_made_again(
    targeted: Any, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "e.json"

    def evaluate(**settings: Any) -> dict[str, Any]:
        return evaluate_weights(targeted(0.0), path, shards, out, console=QUIET, **settings)

    path = _train(targeted(None, steps=1), shards, tmp_path / "training").checkpoint
    (path.parent / TargetReached.file).mkdir()  # refuses root too, as a read-only folder does not
    with pytest.raises(InputError, match=r"e\.json"):
        evaluate()
    evaluated = out.read_bytes()
    assert json.loads(evaluated)["step"] == 1

    out.unlink()  # as Snakemake does with what a failed job has made
    (path.parent / TargetReached.file).rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(AlphaFold, "forward", None)  # cannot be evaluated now
        evaluate()
    assert out.read_bytes() == evaluated
    assert (path.parent / TargetReached.file).is_file()
    assert [file.name for file in tmp_path.glob("e.*")] == ["e.json", "e.tsv"]


def test_an_evaluation_of_other_weights_is_not_taken_for_the_one_that_was_kept(
    targeted: Any, shards: Path, tmp_path: Path
) -> None:
    first = _train(targeted(None, steps=1), shards, tmp_path / "training").checkpoint
    averaged, facts = load_weights(first), asdict(read_metadata(first))
    kept = ("config", "config_hash", "data_manifest_sha256", "scalefold_version", "commit")
    second = save(  # the same step of the same settings, as of a training that started anew
        tmp_path / "anew",
        step=1,
        weights=averaged,
        averaged={name: value + 0.1 for name, value in averaged.items()},
        training={},
        description={name: facts[name] for name in kept},
    )
    scores = []
    for path in (first, second):
        (path.parent / TargetReached.file).mkdir()
        with pytest.raises(InputError, match=r"e\.json"):
            evaluate_weights(targeted(0.0), path, shards, tmp_path / "e.json", console=QUIET)
        scores.append(json.loads((tmp_path / "e.json").read_text())["chains"])
    assert scores[0] != scores[1]


def test_a_message_means_one_target_split_and_data(targeted: Any, tmp_path: Path) -> None:
    reached = TargetReached(step=7, split="train", lddt_ca=0.8, data_manifest_sha256="d" * 64)
    reached.write(tmp_path)
    assert read_end(tmp_path, targeted(0.8).evaluation, "d" * 64) == reached
    assert read_end(tmp_path, targeted(0.81).evaluation, "d" * 64) is None
    assert read_end(tmp_path, targeted(None).evaluation, "d" * 64) is None
    assert read_end(tmp_path, targeted(0.8, ("validation",)).evaluation, "d" * 64) is None
    assert read_end(tmp_path, targeted(0.8).evaluation, "e" * 64) is None
    assert read_end(tmp_path / "other", targeted(0.8).evaluation, "d" * 64) is None


@pytest.mark.parametrize("text", ["", "[]", '{"step": 1}'])
def test_a_damaged_message_is_named(text: str, targeted: Any, tmp_path: Path) -> None:
    (tmp_path / TargetReached.file).write_text(text)
    with pytest.raises(InputError, match=TargetReached.file):
        read_end(tmp_path, targeted(0.8).evaluation, "d" * 64)


def test_data_of_the_message_are_the_checkpoints(
    targeted: Any, shards: Path, tmp_path: Path
) -> None:
    config = targeted(0.0, steps=1)
    path = _train(targeted(None, steps=1), shards, tmp_path / "training").checkpoint
    evaluate_weights(config, path, shards, tmp_path / "e.json", console=QUIET)
    assert read_end(path.parent, config.evaluation, data_hash(shards)) is not None


def test_a_target_needs_evaluation_beside_training(micro_tree: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"evaluation\.mode"):
        make_config(merge(micro_tree, {"evaluation": {"target_lddt": 0.8}}))
