from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.checkpoint.provenance import InputHashes
from scalefold.checkpoint.read import checkpoint_path, checkpoints, load_weights, ready_mark
from scalefold.checkpoint.replacement import set_aside_other_run
from scalefold.checkpoint.write import save
from scalefold.config import Config, make_config
from scalefold.shards.manifest import data_hash


def configuration(**training: Any) -> Config:
    data = {"chains": "c.tsv", "mirrors": {"mmcif": ["m"], "alignments": ["a"]}}
    steps = {"steps": 4, "checkpoint_every": 2}
    return make_config({"preset": "tiny", "data": data, "training": {**steps, **training}})


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return folder


@pytest.fixture
def run(tmp_path: Path, shards: Path) -> Path:
    """A folder whose training has made 4 steps."""
    out = tmp_path / "run"
    description = {
        "config": configuration().model_dump(mode="json"),
        "config_hash": "",
        "data_manifest_sha256": data_hash(shards),
        "scalefold_version": "0",
        "commit": None,
    }
    for step in (0, 2, 4):
        state = {"w": torch.full((2,), float(step))}
        save(
            out,
            step=step,
            weights=state,
            averaged=state,
            training={"step": step},
            description=description,
        )
    (out / "metrics.jsonl").write_text('{"step": 1}\n')
    return out


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"steps": 6},
        {"steps": 2},
        {"log_every": 1},
        {"steps": 8, "checkpoint_every": 4},
        {"steps": 6, "checkpoint_every": 1, "keep_checkpoints": 2},
        {"checkpoint_every": 1},
        {"checkpoint_every": 3, "steps": 9},
        {"checkpoint_every": 1, "steps": 2},
    ],
    ids=str,
)
def test_a_run_that_goes_on_stays(run: Path, shards: Path, training: dict[str, int]) -> None:
    before = sorted(run.rglob("*.pt"))
    assert (
        set_aside_other_run(configuration(**training), InputHashes(data_hash(shards)), run) is None
    )
    assert sorted(run.rglob("*.pt")) == before
    assert (run / "metrics.jsonl").is_file()


def test_nothing_there(tmp_path: Path) -> None:
    assert set_aside_other_run(configuration(), InputHashes("d" * 64), tmp_path / "new") is None
    assert not (tmp_path / "new/replaced").exists()


@pytest.mark.parametrize(
    "training",
    [
        {"max_recycling": 1},
        {"steps": 3},
        {"steps": 3, "keep_checkpoints": 2},
    ],
    ids=str,
)
def test_another_run_is_moved_whole(run: Path, shards: Path, training: dict[str, int]) -> None:
    (run / "lock").mkdir()
    target = set_aside_other_run(configuration(**training), InputHashes(data_hash(shards)), run)
    assert target == run / "replaced/1"
    assert sorted(path.name for path in run.iterdir()) == ["lock", "replaced"]
    moved = checkpoints(target)
    assert [path.name for path in moved] == ["step-00000000", "step-00000002", "step-00000004"]
    assert load_weights(moved[-1])["w"].tolist() == [4.0, 4.0]
    assert (target / "metrics.jsonl").is_file()


def test_what_is_said_after_the_move_is_in_the_log_of_the_new_training(
    run: Path, shards: Path
) -> None:
    """As in the workflow, which has the log open all the time."""
    with (run / "training.log").open("a", buffering=1) as log:
        log.write("earlier\n")
        target = set_aside_other_run(configuration(steps=3), InputHashes(data_hash(shards)), run)
        log.write("new\n")
    assert (run / "training.log").read_text() == "earlier\nnew\n"
    assert target is not None
    assert (target / "training.log").read_text() == "earlier\n"


def test_a_checkpoint_that_was_deleted_is_not_made_again(run: Path, shards: Path) -> None:
    ready_mark(checkpoint_path(run, 2)).unlink()
    inputs = InputHashes(data_hash(shards))
    assert set_aside_other_run(configuration(steps=8), inputs, run) is None


def test_other_data_and_a_second_time(run: Path) -> None:
    assert set_aside_other_run(configuration(), InputHashes("d" * 64), run) == run / "replaced/1"
    assert set_aside_other_run(configuration(), InputHashes("d" * 64), run) is None
    for path in (run / "replaced/1").iterdir():
        path.rename(run / path.name)
    assert set_aside_other_run(configuration(), InputHashes("d" * 64), run) == run / "replaced/2"


def test_why_it_is_moved_is_said_in_words_of_its_own(
    run: Path, shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is refused, so nothing of what a refusal advises."""
    set_aside_other_run(configuration(max_recycling=1), InputHashes("d" * 64), run)
    (said,) = caplog.messages
    assert f"the earlier one is kept in {run / 'replaced/1'}: " in said
    assert "\n  training data: manifest" in said
    assert "  training.max_recycling: 3 in the checkpoint, 1 now" in said
    for advice in ("Undo", "cannot", "may change"):
        assert advice not in said
