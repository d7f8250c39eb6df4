"""Records of measurements say what made them: command, commit, device."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"
BY_SCRIPTS = {
    "numerics.json",
    "small-operations-h200.json",
    "step-h200-graphs-kernels-first.json",
    "step-h200-way.json",
}
"""Not of ``scalefold``; they and their documents say of what."""
COMMIT_SAID_IN_A_NOTE = {"learn-h200.json"}
UNCOMMITTED_CHANGES = {"curves-h200-79a4eb7.json"}
"""Their documents say so."""
RECORDS = sorted(p for p in (DOCS / "benchmarks").glob("*.json") if p.name not in BY_SCRIPTS)


def origin(record: dict[str, Any]) -> dict[str, Any]:
    """Where a record comes from: a benchmark's head, or the last session of a run's report."""
    if "benchmark" in record:
        assert re.match(r"scalefold (bench|profile) ", record["command"])
        return record
    return record["provenance"]["trained_with"][-1]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_a_record_says_what_made_it(path: Path) -> None:
    record = json.loads(path.read_text("utf-8"))
    if path.name in COMMIT_SAID_IN_A_NOTE:
        assert re.search("[0-9a-f]{40}", record["note"])
        return
    made_with = origin(record)
    plus = "\\+" if path.name in UNCOMMITTED_CHANGES else ""
    assert re.fullmatch("[0-9a-f]{40}" + plus, made_with["commit"])
    assert made_with["device"]
    assert made_with["torch"]


def test_each_record_is_used() -> None:
    text = "".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    assert [p.name for p in (DOCS / "benchmarks").iterdir() if p.name not in text] == []
