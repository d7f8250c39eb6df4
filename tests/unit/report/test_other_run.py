"""The training of another run beside this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.unit.report.conftest import content_of, training_of
from typer.testing import CliRunner

from scalefold.cli import app
from scalefold.config import load_config
from scalefold.errors import InputError
from scalefold.report import write_report
from scalefold.report.other_run import beside, read_report

REPOSITORY = Path(__file__).parents[3]


def written(run: Path) -> Path:
    """The report of a run, without its page, which takes time."""
    path = run / "report.json"
    path.write_text(json.dumps(content_of(run)), "utf-8")
    return path


def columns(steps: list[int], values: list[float | None]) -> dict[str, list]:
    return {"step": steps, "loss/fape": values, "samples_per_second": values}


def other(steps: list[int], values: list[float | None]) -> dict:
    return {"run": "b", "training": columns(steps, values), "provenance": {"config": None}}


def test_both_are_told_after_the_steps_that_both_have_made():
    long, short = list(range(1, 101)), list(range(5, 55, 5))
    found = beside(columns(long, [2.0] * 50 + [1.0] * 50), None, other(short, [3.0] * 10))
    assert found["step"] == 50
    assert found["rows"] == [{"key": "loss/fape", "here": 2.0, "there": 3.0}]
    found = beside(columns(short, [3.0] * 10), None, other(long, [2.0] * 50 + [1.0] * 50))
    assert found["rows"] == [{"key": "loss/fape", "here": 3.0, "there": 2.0}]
    assert found["training"]["step"] == long[:50]


def test_what_one_did_not_log_is_left_out():
    found = beside(columns([1, 2], [None, None]), None, other([1, 2], [1.0, 1.0]))
    assert found["rows"] == []
    assert beside({}, None, other([1, 2], [1.0, 1.0])) is None


def test_settings_that_differ_are_those_that_a_training_depends_on(make_run):
    here = content_of(make_run("here", training={"log_every": 5}))
    there = content_of(make_run("there", training={"global_batch_size": 2}))
    found = beside(here["training"], here["provenance"]["config"], there)
    assert found["settings"] == [{"key": "training.global_batch_size", "here": 1, "there": 2}]
    del there["provenance"]["config"]["features"]["crop_size"]  # of a version without it
    assert (
        beside(here["training"], here["provenance"]["config"], there)["settings"]
        == (found["settings"])
    )


def test_the_page_shows_the_other_run(make_run):
    run, report = make_run("here"), written(make_run("there"))
    content = write_report(run, beside=report)
    assert content["beside"]["settings"] == []
    page = (run / "report.html").read_text("utf-8")
    assert page.count("After 200 steps") == 1
    assert content["beside"]["rows"][0]["here"] == content["beside"]["rows"][0]["there"]


def test_the_configuration_names_it_and_the_command_another(make_run, tmp_path):
    run, named, given = make_run("run"), written(make_run("named")), written(make_run("given"))
    data = {"chains": "x", "mirrors": {"mmcif": ["x"], "alignments": ["x"]}}
    evaluation = {"recycling": 3, "splits": ["train", "validation"]}
    tree = {"data": data, "evaluation": evaluation, "report": {"beside": str(named)}}
    config = tmp_path / "my.yaml"
    config.write_text(yaml.safe_dump(tree))
    for options, expected in (([], "named"), (["--beside", str(given)], "given")):
        done = CliRunner().invoke(app, ["report", str(run), "-c", str(config), *options])
        assert done.exit_code == 0, done.output
        assert json.loads((run / "report.json").read_text("utf-8"))["beside"]["run"] == expected


@pytest.mark.parametrize("damage", ["not JSON", "{}", '{"run": "x", "training": {}}'])
def test_what_is_no_report_is_refused(make_run, tmp_path, damage):
    path = tmp_path / "report.json"
    with pytest.raises(InputError, match=r"report\.json"):
        read_report(path)
    path.write_text(damage)
    with pytest.raises(InputError, match=r"report\.json"):
        read_report(path)


def test_a_run_that_has_logged_nothing_is_refused(make_run):
    run = make_run()
    (training_of(run) / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="no steps"):
        read_report(written(run))


def test_the_bundled_reference_is_of_its_configuration(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    config = load_config([Path("demo/learn.yaml")])
    report = read_report(config.report.beside)
    tree = config.model_dump(mode="json")
    assert beside(report["training"], tree, report)["settings"] == []
