"""What version a3f069b left can be read, resumed, evaluated, exported and reported.

Only commands are called, and only files are read, so these tests outlast every move of the code.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from typer.testing import CliRunner

from scalefold.cli import app

ROOT = Path(__file__).parents[2]
FIXTURE = Path("tests/data/a3f069b")
"""Its configuration names files from the root of the repository."""
CONFIG = ("-c", str(FIXTURE / "config.yaml"))
KEY = "6d91b8e2c64a"
SHARDS = FIXTURE / "run/shards"
TRAINING = FIXTURE / "run/weights" / KEY
CHECKPOINT = TRAINING / "step-00000004"
EXPECTED = FIXTURE / "expected"

RECORD_TOLERANCE = 2e-5
"""Relative. Other instruction sets (SSE, AVX2) change a metric by up to 8e-7 of itself."""
UPDATE_TOLERANCE = 1e-4
"""Relative, of the norm of four updates. Other instruction sets change it by up to 2e-6."""

TIMES = {"step_seconds", "samples_per_second", "loader_wait_seconds", "time"}


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def scalefold(*words: str | Path) -> str:
    """Run a command in this process, and return what it prints."""
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="scalefold")
    assert result.exit_code == 0, result.output
    return result.stdout


def leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Values of a tree by dotted key."""
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    parts = [leaves(value, f"{prefix}.{name}".lstrip(".")) for name, value in tree.items()]
    return {key: value for part in parts for key, value in part.items()}


def flat(state: dict[str, Tensor]) -> Tensor:
    """All values as one vector, by sorted name."""
    return torch.cat([state[name].double().flatten() for name in sorted(state)])


def load(path: Path) -> dict[str, Tensor]:
    return torch.load(path, weights_only=True)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training, continued for four steps by today's code."""
    out = tmp_path_factory.mktemp("resumed") / "training"
    shutil.copytree(ROOT / TRAINING, out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        scalefold(
            "train", *CONFIG, "--shards", SHARDS, "--out", out, "--device", "cpu", "--resume",
            "--set", "training.steps=8",
        )  # fmt: skip
    torch.set_num_threads(threads)
    return out


@pytest.mark.parametrize("file", [FIXTURE / "config.yaml", EXPECTED / "config.yaml"])
def test_configuration_has_the_same_keys_and_values(file: Path) -> None:
    before = leaves(yaml.safe_load((EXPECTED / "config.yaml").read_text()))
    now = leaves(yaml.safe_load(scalefold("config", "show", "-c", file)))
    assert {key: now.get(key, "(absent)") for key in before} == before


def test_configuration_has_the_same_key_of_its_results() -> None:
    assert scalefold("config", "key", *CONFIG).strip() == KEY


def test_shards_are_verified_and_shown() -> None:
    scalefold("verify", SHARDS)
    assert "4zey_A" in scalefold("inspect", SHARDS, "--chain", "4zey_A")


def test_resumed_training_computes_the_same_steps(resumed: Path) -> None:
    found, expected = records(resumed / "metrics.jsonl"), records(EXPECTED / "metrics.jsonl")
    assert [record["step"] for record in found] == [1, 2, 3, 4, 5, 6, 7, 8]
    for ours, theirs in zip(found, expected, strict=True):
        names = theirs.keys() - TIMES
        values = {name: theirs[name] for name in names}
        assert {name: ours[name] for name in names} == pytest.approx(values, rel=RECORD_TOLERANCE)


@pytest.mark.parametrize("which", ["weights", "averaged"])
def test_resumed_training_makes_the_same_updates(resumed: Path, which: str) -> None:
    before, ours = load(CHECKPOINT / f"{which}.pt"), load(resumed / f"step-00000008/{which}.pt")
    theirs = load(EXPECTED / f"{which}.pt")
    assert ours.keys() == theirs.keys()
    assert {name: value.shape for name, value in ours.items()} == {
        name: value.shape for name, value in theirs.items()
    }
    update = flat(theirs) - flat(before)
    error = (flat(ours) - flat(theirs)).norm() / update.norm()
    assert error <= UPDATE_TOLERANCE


def test_checkpoint_is_evaluated_to_the_same_scores(tmp_path: Path) -> None:
    out = tmp_path / "evaluation.json"
    scalefold("evaluate", CHECKPOINT, *CONFIG, "--shards", SHARDS, "--out", out, "--device", "cpu")
    name = FIXTURE / f"run/evaluation/{KEY}/step-00000004.json"
    before, now = json.loads(name.read_text()), json.loads(out.read_text())
    assert now["step"] == 4
    before, now = before["mean"]["validation"], now["mean"]["validation"]
    # The search for the best superposition is longer today, so what it maximises may rise.
    for score in ("gdt_ts", "tm_score"):
        assert now.pop(score) >= before.pop(score)
    # Scores are written with six decimals.
    assert now == pytest.approx(before, rel=RECORD_TOLERANCE, abs=2e-6)


def test_checkpoint_is_exported_with_the_same_names_and_values(tmp_path: Path) -> None:
    out = tmp_path / "openfold.pt"
    scalefold("weights", "export", CHECKPOINT, "--out", out)
    exported, averaged = load(out), load(CHECKPOINT / "averaged.pt")
    assert exported.keys() == averaged.keys()
    assert all(torch.equal(exported[name], averaged[name]) for name in averaged)
    scalefold("weights", "import", out, *CONFIG, "--out", tmp_path / "again.pt")


def test_run_is_reported(tmp_path: Path) -> None:
    scalefold("report", FIXTURE / "run", "--out", tmp_path / "report.html")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["summary"]["lddt_ca"]["validation"]["last"]["value"] == pytest.approx(0.01331)
