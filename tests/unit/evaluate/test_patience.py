"""Evaluations that do not rise any more end their training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.unit.train.quietly import train_quietly

from scalefold.checkpoint.early_stopping import Stalled, read_end
from scalefold.checkpoint.read import checkpoint_path, read_metadata
from scalefold.config import Config, make_config
from scalefold.config.load import merge
from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError
from scalefold.evaluate.patience import stalled
from scalefold.evaluate.run import evaluate_weights

PATIENT = EvaluationConfig(mode="async", patience=2)


@pytest.fixture(scope="module")
def training(
    micro_tree: dict[str, Any], shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A training with checkpoints 0 to 4."""
    out = tmp_path_factory.mktemp("training")
    settings = {"training": {"steps": 4, "checkpoint_every": 1, "max_recycling": 0}}
    train_quietly(make_config(merge(micro_tree, settings)), shards, out)
    return out


def _evaluation(training: Path, step: int, **scores: float | None) -> dict[str, Any]:
    metadata = read_metadata(checkpoint_path(training, step))
    chains = [
        {"chain_key": key, "split": "validation", "lddt_ca": value} for key, value in scores.items()
    ]
    return {
        "step": step,
        "weights_sha256": metadata.files["averaged.pt"].sha256,
        "data_manifest_sha256": metadata.data_manifest_sha256,
        "recycling": 3,
        "precision": "fp32",
        "seed": 0,
        "max_length": 2048,
        "chains": chains,
    }


def _stalled(training: Path, folder: Path, *evaluations: dict[str, Any]) -> Stalled | None:
    *earlier, last = evaluations
    for evaluation in earlier:
        (folder / f"step-{evaluation['step']:08d}.json").write_text(json.dumps(evaluation))
    return stalled(last, training, folder, PATIENT)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([0.5, 0.6, 0.55, 0.6], 1),  # as high as the best is no gain
        ([0.5, 0.4, 0.3], 0),  # training only harms
        ([0.5, 0.4], None),  # one evaluation, not two
        ([0.5, 0.4, 0.6, 0.5], None),
        ([0.1, 0.2, 0.3, 0.4], None),
    ],
)
def test_it_ends_after_as_many_evaluations_without_a_gain(
    scores: list[float], best: int | None, training: Path, tmp_path: Path
) -> None:
    evaluations = [_evaluation(training, step, a=score) for step, score in enumerate(scores)]
    found = _stalled(training, tmp_path, *evaluations)
    assert (None if found is None else found.best_step) == best


def test_means_are_over_the_chains_that_all_have_scored(training: Path, tmp_path: Path) -> None:
    evaluations = [
        _evaluation(training, 0, a=0.5),
        _evaluation(training, 1, a=0.4, b=0.9),
        _evaluation(training, 2, a=0.4, b=0.9, c=None),
    ]
    found = _stalled(training, tmp_path, *evaluations)
    assert found is not None
    assert found.best_step == 0


@pytest.mark.parametrize("change", [{"weights_sha256": "0" * 64}, {"recycling": 1}])
def test_what_is_not_of_this_training_or_these_settings_does_not_count(
    change: dict[str, Any], training: Path, tmp_path: Path
) -> None:
    other = _evaluation(training, 0, a=0.9) | change
    evaluations = [_evaluation(training, step, a=0.1 * step) for step in (1, 2)]
    assert _stalled(training, tmp_path, other, *evaluations) is None


def test_a_message_means_one_patience_split_and_data(tmp_path: Path) -> None:
    message = Stalled(4, "validation", best_step=1, evaluations=3, data_manifest_sha256="d" * 64)
    message.write(tmp_path)

    def read(data: str = "d", **settings: Any) -> Any:
        given: dict[str, Any] = {"mode": "async", "patience": 3} | settings
        return read_end(tmp_path, EvaluationConfig(**given), data * 64)

    assert read() == read(patience=2) == message
    assert read(patience=4) is read(patience=None) is read(splits=["train"]) is read("e") is None


def test_training_ends_early_and_goes_on_when_patience_is_raised(
    micro_tree: dict[str, Any], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalefold.checkpoint.early_stopping._SECONDS_BETWEEN_LOOKS", 0.0)

    def config(patience: int, steps: int) -> Config:
        evaluation = {"mode": "async", "patience": patience, "splits": ["train"], "recycling": 0}
        # So low a rate changes no score: nothing is ever gained.
        changes = {"optimiser": {"learning_rate": 1e-30}, "evaluation": evaluation}
        training = {"steps": steps, "checkpoint_every": 1, "max_recycling": 0}
        return make_config(merge(micro_tree, changes | {"training": training}))

    out, folder = tmp_path / "training", tmp_path / "evaluations"
    first = train_quietly(config(2, 3), shards, out)
    assert first.step == 3
    for step in range(3):
        assert not (out / Stalled.file).exists()
        path = folder / f"step-{step:08d}.json"
        evaluate_weights(config(2, 3), checkpoint_path(out, step), shards, path)
    result = train_quietly(config(2, 9), shards, out, resume=True)
    assert (result.step, result.completed) == (3, True)
    assert isinstance(result.end, Stalled)
    assert asdict(result.end)["best_step"] == 0
    assert train_quietly(config(3, 4), shards, out, resume=True).step == 4


def test_patience_needs_evaluation_beside_training(micro_tree: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"patience.*evaluation\.mode"):
        make_config(merge(micro_tree, {"evaluation": {"patience": 3}}))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"step": "x"}', b"[" * 100_000])
def test_a_damaged_evaluation_does_not_count(
    training: Path, tmp_path: Path, content: bytes
) -> None:
    found = [_evaluation(training, step, a=0.5) for step in range(4)]
    (tmp_path / "step-00000009.json").write_bytes(content)
    message = _stalled(training, tmp_path, *found)
    assert message is not None
    assert message.step == 3
