"""Tables of the pages hold the numbers of the records that they name, as they are rounded there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def record(name: str) -> dict[str, Any]:
    return json.loads((DOCS / "benchmarks" / name).read_text("utf-8"))


def tables(page: str, head: str) -> list[list[dict[str, str]]]:
    """Rows of the tables whose header begins so, by column."""
    found: list[list[dict[str, str]]] = []
    names: list[str] = []
    for line in (DOCS / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            names = []
        elif line.startswith(head):
            names = cells
            found.append([])
        elif names and not line.startswith("|--"):
            found[-1].append(dict(zip(names, cells, strict=True)))
    return found


def rounds_to(values: list[float] | None, cell: str) -> bool:
    """Whether these numbers are what a cell such as ``1,065 / **2.5**`` says."""
    if values is None:
        return cell == "-"
    said = [text.strip() for text in cell.replace("*", "").split("/")]
    digits = [len(text.partition(".")[2]) for text in said]
    return said == [f"{value:,.{n}f}" for value, n in zip(values, digits, strict=True)]


def test_cells_are_compared_as_they_are_rounded() -> None:
    assert rounds_to([1064.6, 2.451], "1,065 / **2.5**")
    assert not rounds_to([1064.4, 2.451], "1,065 / **2.5**")
    assert rounds_to(None, "-")


def words(text: str) -> str:
    return " ".join(re.findall(r"[\w.=-]+", text.replace("_", " ")))


def microseconds(case: dict[str, Any], column: str) -> list[float] | None:
    """Forward, and forward and backward, of an implementation or the floor."""
    of = {made["name"]: made["seconds"] for made in case["implementations"]}
    seconds = {"floor": case["floor_seconds"], **of}.get(column)
    return seconds and [1e6 * seconds[part] for part in ("forward", "forward_backward")]


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "kernels-h200.json"), (1, "kernels-peers-h200.json"), (2, "kernels-triangle-h200.json")],
)
def test_times_of_kernels(number: int, name: str) -> None:
    cases = {}
    for case in record(name)["cases"]:
        cases |= {words(case["shape"]): case, words(f"{case['op']} {case['shape']}"): case}
    for row in tables("kernels.md", "| | floor |")[number]:
        case = cases[words(row.pop(""))]
        for column, cell in row.items():
            assert rounds_to(microseconds(case, column), cell), (case["shape"], column)


def rungs() -> dict[str, dict[str, Any]]:
    """Of the ladder, of all of its parts; the last is the step by default, if no part has it."""
    parts = [record(path.name) for path in (DOCS / "benchmarks").glob("ladder-h200*.json")]
    measured = {rung["rung"]: rung for part in parts for rung in part["rungs"]}
    return {"kept": record("recomputation-h200.json")["variants"][0]} | measured


def test_the_ladder() -> None:
    (rows,) = tables("performance.md", "| rung |")
    for _, *cells in (row.values() for row in rows):
        assert any(
            all(rounds_to([n], cell) for n, cell in zip(numbers(rung), cells, strict=True))
            for rung in rungs().values()
        ), cells


def numbers(rung: dict[str, Any]) -> list[float]:
    """Mean step; busy time of a step without recycling, and of a pass; launches."""
    busy = rung["gpu_busy_seconds_by_recycling"]
    launches = rung["launches_by_recycling"]
    return [rung["mean_step_seconds"], busy[0], busy[1] - busy[0], launches[0]]


def test_steps() -> None:
    """The first two rows are others', of which there are no records."""
    (rows,) = tables("performance.md", "| a training step, seconds |")
    for row, name in zip(rows[2:], ("baseline", "bf16", "kept"), strict=True):
        step = rungs()[name]
        assert rounds_to(step["step_seconds_by_recycling"], row["recycles 0 / 1 / 2 / 3"])
        assert rounds_to([step["mean_step_seconds"]], row["mean"])
        assert rounds_to([step["peak_memory_gib"]], row["peak GiB"])


def test_loss_curves() -> None:
    found = record("curves-h200.json")
    means = {name: map(fmean, zip(*seeds, strict=True)) for name, seeds in found["curves"].items()}
    windows = list(
        zip(means["reference"], means["ours"], found["difference"], found["spread"], strict=True)
    )
    (rows,) = tables("learning.md", "| steps | float32 |")
    for row in rows:
        steps, *cells = row.values()
        last = int(steps.split()[-1])
        values = windows[last * len(windows) // found["steps"] - 1]
        assert all(rounds_to([n], cell) for n, cell in zip(values, cells, strict=True)), row
