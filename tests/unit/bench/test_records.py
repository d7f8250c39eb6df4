"""Records of measurements say what made them: command, commit, device, shapes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"
BY_HAND = {
    "small-operations-h200.json",
    "step-h200-graphs-kernels-first.json",
    "step-h200-way.json",
}
"""Of scripts that are no more; they and their documents say of what."""
UNCOMMITTED_CHANGES = {"curves-h200-79a4eb7.json"}
"""Its document says so. It names no shapes either."""
RECORDS = sorted(p for p in (DOCS / "benchmarks").glob("*.json") if p.name not in BY_HAND)


def origins(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Where a record comes from: a command's head, or heads; or the last session of a report.

    A report is of a training, several evaluations and more, so it has the whole configuration.
    """
    if "benchmark" in record:
        assert re.match(r"scalefold (bench|profile) ", record["command"])
        return [record]
    if "provenance" in record:
        assert record["provenance"]["config"]["features"]["crop_size"]
        return [record["provenance"]["trained_with"][-1]]
    comparisons = list(record.values())  # with other codes, by a script among the tests
    assert all(part["command"].startswith("compare") for part in comparisons)
    return [part | {"device": part["cpu"]} for part in comparisons]


def shapes(benchmark: dict[str, Any]) -> list[Any]:
    """Sizes, said once, or of each case or run."""
    if "shapes" in benchmark:
        return [benchmark["shapes"]]
    parts = benchmark.get("cases") or benchmark["runs"]
    return [part.get("shape") or part.get("residues") for part in parts]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_a_record_says_what_made_it(path: Path) -> None:
    record = json.loads(path.read_text("utf-8"))
    changed = path.name in UNCOMMITTED_CHANGES
    for made_with in origins(record):
        assert re.fullmatch("[0-9a-f]{40}" + "\\+" * changed, made_with["commit"])
        assert made_with["device"]
        assert made_with["torch"]
    if "benchmark" in record and not changed:
        assert all(shapes(record))


def test_each_record_is_used() -> None:
    text = "".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    assert [p.name for p in (DOCS / "benchmarks").iterdir() if p.name not in text] == []
