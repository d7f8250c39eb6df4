"""Tables of the pages hold the numbers of the records that they name, as they are rounded there."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from statistics import fmean, median
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
        if not line.startswith("|"):
            names = []
        elif line.startswith(head):
            names = cells(line)
            found.append([])
        elif names and not line.startswith("|--"):
            found[-1].append(dict(zip(names, cells(line), strict=True)))
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rounds_to(values: list[float] | None, cell: str) -> bool:
    """Whether these numbers are what a cell such as ``1,065 / **2.5**`` says."""
    if values is None:
        return cell == "-"
    said = [text.strip().replace(",", "") for text in cell.replace("*", "").split("/")]
    half = [0.5 * 10 ** -len(text.partition(".")[2]) for text in said]
    return all(
        abs(value - float(text)) <= h + 1e-9 * value  # a tie goes either way
        for value, text, h in zip(values, said, half, strict=True)
    )


def test_cells_are_compared_as_they_are_rounded() -> None:
    assert rounds_to([1064.6, 2.451], "1,065 / **2.5**")
    assert not rounds_to([1064.4, 2.451], "1,065 / **2.5**")
    assert rounds_to([0.15655, 0.15655], "0.1566 / 0.1565")
    assert rounds_to(None, "-")


def words(text: str) -> str:
    return " ".join(re.findall(r"[\w.=-]+", text.replace("_", " ")))


def microseconds(case: dict[str, Any], column: str, key: str) -> list[float] | None:
    """Forward, and forward and backward, of an implementation or the floor."""
    of = {made["name"]: made.get(key) for made in case["implementations"]}
    seconds = {"floor": case["floor_seconds"], **of}.get(column)
    return seconds and [1e6 * seconds[part] for part in ("forward", "forward_backward")]


def pages() -> list[Path]:
    return [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_who_links_to_a_record_names_its_commit(page: Path) -> None:
    """In the same paragraph or table."""
    for block in page.read_text("utf-8").split("\n\n"):
        for name in re.findall(r"benchmarks/([\w.-]+\.json)", block):
            found = record(name)
            commit = found.get("commit") or found.get("provenance", {}).get("commit", "")
            assert commit[:7] in block, f"{name} is of {commit[:7]}: {block[:200]}"


def tables_of_kernels() -> list[tuple[list[str], list[str]]]:
    """Lines of each table of times, and the records that the paragraph before it links to."""
    page = (DOCS / "kernels/benchmark.md").read_text("utf-8")
    blocks = [block.splitlines() for block in page.split("\n\n")]
    return [
        (table, re.findall(r"benchmarks/(kernels-\S+\.json)", " ".join(before)))
        for before, table in itertools.pairwise(blocks)
        if table[0].startswith(("| | floor |", "| in the cache |"))
    ]


def test_times_of_kernels() -> None:
    found = tables_of_kernels()
    linked = {name for _, names in found for name in names}
    assert linked == {path.name for path in (DOCS / "benchmarks").glob("kernels-*.json")}
    for (head, _, *lines), names in found:
        cases: dict[str, Any] = {}
        for case in (case for name in names for case in record(name)["cases"]):
            cases |= {words(case["shape"]): case, words(f"{case['op']} {case['shape']}"): case}
        first, *columns = cells(head)
        key = "seconds_in_cache" if first == "in the cache" else "seconds"
        for line in lines:
            name, *times = cells(line)
            case = cases[words(name)]
            for column, cell in zip(columns, times, strict=True):
                assert rounds_to(microseconds(case, column, key), cell), (names, name, column)


def test_spread_between_records() -> None:
    """How far times of one quantity differ: median, the tenth that differs most, most of all."""
    names = [path.name for path in (DOCS / "benchmarks").glob("kernels-*.json")]
    page = " ".join((DOCS / "kernels/benchmark.md").read_text("utf-8").split())
    (said,) = re.findall(
        r"(\d+) times of ScaleFold .* by (\S+) % in the median, by (\S+) % or more in one of ten, "
        r"and by (\S+) % at most.*?; torch's by (\S+), (\S+) and (\S+) %",
        page,
    )
    found = {}
    for who in ("ScaleFold", "torch"):
        times: dict[tuple[str, ...], list[float]] = {}
        for case in (case for name in names for case in record(name)["cases"]):
            if both := microseconds(case, who, "seconds"):
                for part, time in zip(("forward", "both"), both, strict=True):
                    times.setdefault((case["op"], case["shape"], part), []).append(time)
        again = (100 * (max(of) / min(of) - 1) for of in times.values() if len(of) > 1)
        found[who] = sorted(again, reverse=True)
    assert int(said[0]) == len(found["ScaleFold"])
    for values, cells in ((found["ScaleFold"], said[1:4]), (found["torch"], said[4:])):
        spread = [median(values), values[len(values) // 10], values[0]]
        assert all(rounds_to([n], cell) for n, cell in zip(spread, cells, strict=True)), cells


def test_attention_by_commit() -> None:
    """The last row is of the records that are there; earlier ones are in the history."""
    (rows,) = tables("kernels/attention.md", "| commit, and what came before it |")
    head, *columns = rows[-1]
    cases: dict[str, Any] = {}
    for found in (record("kernels-h200.json"), record("kernels-shapes-h200.json")):
        assert found["commit"].startswith(rows[-1][head].partition(":")[0])
        cases |= {case["shape"]: case for case in found["cases"]}
    for column in columns:
        shape = column.replace(",", "").replace("rows", "row attention")
        shape = f"triangle attention {shape}" if shape.startswith("N=") else shape
        assert rounds_to(microseconds(cases[shape], "ScaleFold", "seconds"), rows[-1][column])


def test_rates_of_large_operations() -> None:
    """Least and most of all records of kernels."""
    records = [record(path.name) for path in (DOCS / "benchmarks").glob("kernels-*.json")]
    page = " ".join((DOCS / "kernels/benchmark.md").read_text("utf-8").split())
    said = r"Large copies ran at (\S+) to (\S+) TB/s in them, large products at (\S+) to (\S+)"
    (rates,) = re.findall(said, page)
    copies = sorted(1e-12 * of["copy_bytes_per_second"] for of in records)
    products = sorted(1e-12 * of["matmul_flops_per_second"] for of in records)
    assert rounds_to([copies[0], copies[-1], products[0], products[-1]], " / ".join(rates))


def share_of_floor(record_name: str, shape: str) -> list[float]:
    """Per cent of the time, forward, and forward and backward."""
    (case,) = (case for case in record(record_name)["cases"] if case["shape"] == shape)
    times = [microseconds(case, name, "seconds") or [] for name in ("floor", "ScaleFold")]
    return [100 * floor / ours for floor, ours in zip(*times, strict=True)]


def test_goals_of_kernels() -> None:
    """What was measured, and whether the goal is met; LayerNorm's are the lowest of its sizes."""
    crop, larger = "kernels-h200.json", "kernels-shapes-h200.json"
    cases = {case["shape"]: case for name in (crop, larger) for case in record(name)["cases"]}
    small = [(crop, what) for what in ("pair N=256", "MSA 128 x 256", "extra MSA 1024 x 256")]
    small += [(larger, "pair N=384")]
    large = [(larger, what) for what in ("pair N=512", "MSA 512 x 384", "pair N=1024")]
    large += [(larger, "extra MSA 5120 x 384")]
    (rows,) = tables("kernels.md", "| | goal | measured |")
    for row in rows:
        what, kind = row[""].split(",")[0], row[""].rpartition(", ")[2]
        if kind == "us":
            shape = what.replace("multiplication ", "multiplication, outgoing ")
            values = microseconds(cases[shape], "ScaleFold", "seconds") or []
        elif kind == "times the floor":
            values = [100 / share for share in share_of_floor(crop, what)]
        elif what == "optimiser":
            values = share_of_floor(crop, "93 Mi parameters")[:1]
        else:
            sizes = small if "17 to 38" in what else large
            shares = [share_of_floor(name, f"LayerNorm {shape}") for name, shape in sizes]
            values = [min(part) for part in zip(*shares, strict=True)]
        assert rounds_to(values, row["measured"]), row
        goals = map(float, row["goal"].split(" / "))
        most = "%" not in kind
        met = [
            value <= goal if most else value >= goal
            for value, goal in zip(values, goals, strict=True)
        ]
        said = "yes" if all(met) else "forward only" if met[0] else "no"
        assert row["met"].partition(" ([")[0] == said, row


def test_sanitizer() -> None:
    found = record("sanitizer-h200.json")
    (rows,) = tables("kernels.md", "| tool | precision")
    for tool in {run["tool"] for run in found["runs"]}:
        runs = [run for run in found["runs"] if run["tool"] == tool]
        said = {
            name: [cell for row in rows if row["tool"] == tool for cell in row[name].split(", ")]
            for name in ("kernels", "errors", "seconds")
        }
        assert sorted(said["kernels"]) == sorted(str(len(run["kernels"])) for run in runs)
        assert set(said["errors"]) == {str(run["errors"]) for run in runs}
        seconds = sorted(run["seconds"] for run in runs)
        assert rounds_to(seconds, " / ".join(sorted(said["seconds"], key=int)))
    (kernels,) = re.findall(r"these are (\d+) kernels", (DOCS / "kernels.md").read_text("utf-8"))
    assert int(kernels) == len({name for run in found["runs"] for name in run["kernels"]})


def rungs() -> dict[str, dict[str, Any]]:
    """Of the ladder, of all of its parts."""
    parts = [record(path.name) for path in (DOCS / "benchmarks").glob("ladder-h200*.json")]
    return {rung["rung"]: rung for part in parts for rung in part["rungs"]}


def by_default() -> dict[str, Any]:
    """The step of the MLPerf configuration as it comes."""
    step: dict[str, Any] = record("recomputation-h200.json")["variants"][0]
    return step


def test_the_ladder() -> None:
    (rows,) = tables("performance.md", "| rung |")
    assert len(rows) == len(rungs())
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
    """The first row is of others, as published."""
    (rows,) = tables("performance.md", "| a training step, seconds |")
    steps = rungs()["baseline"], rungs()["bf16"], by_default()
    for row, step in zip(rows[1:], steps, strict=True):
        assert rounds_to(step["step_seconds_by_recycling"], row["recycles 0 / 1 / 2 / 3"])
        assert rounds_to([step["mean_step_seconds"]], row["mean"])
        assert rounds_to([step["peak_memory_gib"]], row["peak GiB"])
        name = linked(row["a training step, seconds"]) or "ladder-h200-1.json"
        assert record(name)["commit"].startswith(row["at"]), row


def test_goals_of_training() -> None:
    """What was measured of each, the commit of its record, and that the goal is met."""
    (rows,) = tables("performance.md", "| | goal | measured | at |")
    *steps, learning = (row for row in rows if row["at"])
    for row in steps:
        found = record(linked(row["at"]) or "")
        mean = found["variants"][0]["mean_step_seconds"]
        assert rounds_to([mean], row["measured"]), row
        assert found["commit"].startswith(row["at"][1:8]), row
        assert mean <= float(row["goal"])
    run = record(linked(learning["at"]) or "")
    times = dict(zip(run["training"]["step"], run["training"]["time"], strict=True))
    reached = [
        (times[evaluation["step"]] - run["training"]["time"][0], score)
        for evaluation in run["evaluations"]
        if (score := evaluation["mean"]["train"]["lddt_ca"]) >= float(learning["goal"])
    ]
    score_said, seconds_said = re.findall(r"[\d.]+", learning["measured"])[:2]
    assert rounds_to([*reversed(reached[0])], f"{score_said} / {seconds_said}")


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


def linked(cell: str) -> str | None:
    """The record that a cell links to."""
    found = re.search(r"\(benchmarks/(\S+\.json)\)", cell)
    return found and found[1]


def test_the_way() -> None:
    """Rows of before there were commands are in two records that were written by hand."""
    first = record("step-h200-graphs-kernels-first.json")["variants"]
    by_hand = [fmean(variant["step_seconds_by_recycling"]) for variant in first]
    by_hand += [row[2] for row in record("step-h200-way.json")["rows"]]
    (rows,) = tables("performance.md", "| | mean step, s | predicted")
    for row in rows:
        cell, _, link = row["mean step, s"].partition(" ")
        if name := linked(link):
            assert rounds_to([record(name)["variants"][0]["mean_step_seconds"]], cell), row
        elif "small-operations.md" not in link:  # which says that there is none
            assert any(rounds_to([mean], cell) for mean in by_hand), row


def recomputed() -> dict[str, dict[str, Any]]:
    """Rows of the page's table by name, each with its ``variant`` and its record's ``none``."""
    (rows,) = tables("performance.md", "| | mean step, s | peak GiB |")
    return {row[""].partition(" ([")[0]: row | _variant(row[""]) for row in rows}


def _variant(row: str) -> dict[str, Any]:
    kind = re.findall(r"`(\w+)`", row.partition(" ([")[0])[-1]
    limit = re.search(r"within (\d+) GiB", row)
    default = "finetuning" if row.startswith("fine-tuning") else "recomputation"
    name = "limits-h200.json" if limit else linked(row) or f"{default}-h200.json"
    variants = {
        (v["memory_limit_gib"], v.get("recomputation")): v for v in record(name)["variants"]
    }
    chosen = variants[float(limit[1]) if limit else None, kind]
    return {
        "variant": chosen,
        "none": variants.get((None, "none")),
        "commit": record(name)["commit"],
    }


def test_recomputation() -> None:
    for name, row in recomputed().items():
        variant = row["variant"]
        mean, _, more = row["mean step, s"].partition(" (+ ")
        assert rounds_to([variant["mean_step_seconds"]], mean), name
        assert rounds_to([variant["peak_memory_gib"]], row["peak GiB"]), name
        assert row["commit"].startswith(row["at"]), name
        if more:
            ratio = variant["mean_step_seconds"] / row["none"]["mean_step_seconds"]
            assert rounds_to([100 * (ratio - 1)], more.removesuffix(" %)")), name


def test_readme() -> None:
    text = " ".join((DOCS.parent / "README.md").read_text("utf-8").split())
    memory = (
        r"nothing where (\S+) GiB are taken, projections at (\S+) GiB, whole blocks at (\S+) \("
    )
    step = (
        r"takes (\S+) s on one H200 with graphs and kernels; "
        r"in plain PyTorch the GPU works (\S+) s"
    )
    (peaks,), (steps,) = re.findall(memory, text), re.findall(step, text)
    found = recomputed()
    for kind, said in zip(("none", "selective", "full"), peaks, strict=True):
        peak = found[f"MLPerf, `{kind}`"]["variant"]["peak_memory_gib"]
        assert rounds_to([peak], said), kind
    means = [
        by_default()["mean_step_seconds"],
        fmean(rungs()["baseline"]["gpu_busy_seconds_by_recycling"]),
    ]
    assert all(rounds_to([mean], said) for mean, said in zip(means, steps, strict=True))
    attention = (
        r"attention of 384 residues takes (\S+) us forward and (\S+) with backward, "
        r"NVIDIA's cuEquivariance (\S+) and (\S+) \(one H200, (\w+)\)"
    )
    (said,) = re.findall(attention, text)
    peers = record("kernels-peers-h200.json")
    (case,) = (case for case in peers["cases"] if case["shape"] == "triangle attention N=384")
    assert rounds_to(microseconds(case, "ScaleFold", "seconds"), " / ".join(said[:2]))
    assert rounds_to(microseconds(case, "cuEquivariance", "seconds"), " / ".join(said[2:4]))
    assert peers["commit"].startswith(said[4])


def test_learning() -> None:
    run = record("learn-h200.json")
    log, scores = run["training"], {e["step"]: e["mean"]["train"] for e in run["evaluations"]}
    (curve,) = tables("performance.md", "| steps | seconds since the first |")
    for row in curve:
        steps, seconds, *means, score = row.values()
        last = int(steps.replace(",", ""))
        at = [i for i, n in enumerate(log["step"]) if last - 250 < n <= last and n % 25 == 0]
        assert len(at) == 10
        assert rounds_to([log["time"][at[-1]] - log["time"][0]], seconds), row
        for name, said in zip(("loss", "loss/distogram", "lddt_ca"), means, strict=True):
            assert rounds_to([fmean(log[name][i] for i in at)], said), (name, row)
        assert (score != "") == (last in scores)
        assert not score or rounds_to([scores[last]["lddt_ca"]], score), row
    (rows,) = tables("learning.md", "| step | lDDT-Cα |")
    for row in rows:
        step, *cells = row.values()
        of_step = scores[int(step.replace(",", ""))]
        names = ("lddt_ca", "lddt_all_atom", "gdt_ts", "rmsd_ca_angstrom")
        assert all(rounds_to([of_step[n]], cell) for n, cell in zip(names, cells, strict=True)), row


def test_two_gpus() -> None:
    (rows,) = tables("performance.md", "| seconds of a step with recycles |")
    mlperf, finetuning = (
        record(f"data-parallel{kind}-2xh200.json") for kind in ("", "-finetuning")
    )
    kinds = [(found, name) for found in (mlperf, finetuning) for name in ("one", "all")]
    for row, (found, name) in zip(rows, kinds, strict=True):
        assert rounds_to(found["step_seconds_by_recycling"][name], row["0 / 1 / 2 / 3"])
        if name == "all":
            assert rounds_to([100 * found["efficiency"]], row["efficiency"].replace(" %", ""))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("| how long the GPU waits", "loader-h200.json"),
        ("| | GPU waits, p50", "loader-delays-h200.json"),
    ],
)
def test_loaders(head: str, name: str) -> None:
    (rows,) = tables("loader.md", head)
    for row, loader in zip(rows, record(name)["loaders"], strict=True):
        share = row["share of the time"].replace("*", "").removesuffix(" %")
        assert rounds_to([100 * loader["wait_share"]], share), row
        if rate := row.get("steps a second (of 50)"):
            assert rounds_to([loader["steps_per_second"]], rate), row
