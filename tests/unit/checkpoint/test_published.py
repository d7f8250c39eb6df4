"""Which checkpoints the workflow's watcher counts, before a training sets its forerunner aside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from scalefold.checkpoint.published import other_initial_weights, steps_made_from
from scalefold.errors import InputError

DATA, WEIGHTS, OTHER = "d" * 64, "a" * 64, "0" * 64
MADE_FROM = [(DATA, WEIGHTS), (DATA, None), (DATA, OTHER), (OTHER, WEIGHTS), (DATA, WEIGHTS)]


def publish(folder: Path, made_from: Sequence[tuple[str, str | None]]) -> None:
    """Write what a training's checkpoints say that they were made from, step by step."""
    for step, (data, weights) in enumerate(made_from):
        checkpoint = folder / f"step-{step:08d}"
        checkpoint.mkdir()
        facts = {"data_manifest_sha256": data, "initial_weights_sha256": weights}
        (checkpoint / "checkpoint.json").write_text(json.dumps(facts))
        checkpoint.with_name(f"{checkpoint.name}.ready").touch()


@pytest.mark.parametrize(("start", "steps"), [(WEIGHTS, [0, 1, 4]), (None, [0, 1, 2, 4])])
def test_checkpoints_from_other_files_do_not_count(
    start: str | None, steps: list[int], tmp_path: Path
) -> None:
    publish(tmp_path, MADE_FROM)
    (tmp_path / "step-00000005").mkdir()  # not complete
    assert steps_made_from(tmp_path, DATA, start) == steps


@pytest.mark.parametrize(
    ("last", "now", "other"),
    [
        (WEIGHTS, OTHER, WEIGHTS),
        (WEIGHTS, WEIGHTS, None),
        (WEIGHTS, None, None),
        (None, OTHER, None),
    ],
)
def test_the_last_checkpoint_tells_that_initial_weights_were_replaced(
    last: str | None, now: str | None, other: str | None, tmp_path: Path
) -> None:
    assert other_initial_weights(tmp_path, now) is None  # nothing is trained
    publish(tmp_path, [(DATA, "e" * 64), (DATA, last)])
    assert other_initial_weights(tmp_path, now) == other


def test_versions_that_recorded_no_initial_weights(tmp_path: Path) -> None:
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000003/checkpoint.json").write_text(
        json.dumps({"data_manifest_sha256": DATA})
    )
    (tmp_path / "step-00000003.ready").touch()
    assert steps_made_from(tmp_path, DATA, WEIGHTS) == [3]
    assert other_initial_weights(tmp_path, WEIGHTS) is None


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"{}", b"3"])
def test_a_damaged_description_is_named(content: bytes, tmp_path: Path) -> None:
    publish(tmp_path, [(DATA, WEIGHTS)])
    (tmp_path / "step-00000000/checkpoint.json").write_bytes(content)
    for read in (
        lambda: steps_made_from(tmp_path, DATA, None),
        lambda: other_initial_weights(tmp_path, OTHER),
    ):
        with pytest.raises(InputError, match=r"checkpoint\.json: damaged"):
            read()
