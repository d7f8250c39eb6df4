"""A short attack of each kind; `make attack` makes long ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.attack import fuzz, kills
from tests.attack.targets import TARGETS

INPUTS = {
    "chains": 300,
    "config": 60,
    "mirror": 60,
    "packing": 30,
    "report-page": 2,
    "weights": 40,
}
"""Of the other targets 150."""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damaged_files_end_in_errors_that_name_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    target, outcome = TARGETS[name](tmp_path / "scratch"), fuzz.Outcome()
    work, findings = tmp_path / "now", tmp_path / "findings"
    with fuzz.quietly():
        for number in range(INPUTS.get(name, 150)):
            fuzz.attack(target, number, 0, work, findings, outcome)
    assert not outcome.findings


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - {"shards"}))
def test_files_that_nobody_damaged_are_read(name: str, tmp_path: Path) -> None:
    """So an attack begins where all is well. Of shards, their target expects damage."""
    (tmp_path / "scratch").mkdir()
    target = TARGETS[name](tmp_path / "scratch")
    for case, files in target.cases.items():
        for path, content in files.items():
            (tmp_path / case / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / case / path).write_bytes(content)
        target.use(tmp_path / case)


def test_killed_stages_leave_what_undisturbed_ones_leave(tmp_path: Path) -> None:
    stages = ("structures", "train")
    for stage, reference in kills.undisturbed(tmp_path, stages).items():
        assert kills.attack(stage, reference, random.Random(0), tmp_path / "killed") >= 1
