"""Which checkpoints the workflow's watcher counts, before a training sets its forerunner aside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalefold.train.published import steps_made_from

DATA, WEIGHTS, OTHER = "d" * 64, "a" * 64, "0" * 64
MADE_FROM = [(DATA, WEIGHTS), (DATA, None), (DATA, OTHER), (OTHER, WEIGHTS), (DATA, WEIGHTS)]


@pytest.mark.parametrize(("start", "steps"), [(WEIGHTS, [0, 1, 4]), (None, [0, 1, 2, 4])])
def test_checkpoints_from_other_files_do_not_count(
    start: str | None, steps: list[int], tmp_path: Path
) -> None:
    for step, (data, weights) in enumerate(MADE_FROM):
        checkpoint = tmp_path / f"step-{step:08d}"
        checkpoint.mkdir()
        facts = {"data_manifest_sha256": data, "initial_weights_sha256": weights}
        (checkpoint / "checkpoint.json").write_text(json.dumps(facts))
        checkpoint.with_name(f"{checkpoint.name}.ready").touch()
    (tmp_path / "step-00000005").mkdir()  # not complete
    assert steps_made_from(tmp_path, DATA, start) == steps


def test_versions_that_recorded_no_initial_weights(tmp_path: Path) -> None:
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000003/checkpoint.json").write_text(
        json.dumps({"data_manifest_sha256": DATA})
    )
    (tmp_path / "step-00000003.ready").touch()
    assert steps_made_from(tmp_path, DATA, WEIGHTS) == [3]
