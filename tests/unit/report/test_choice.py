"""Which training or evaluations of which folder a report is of."""

from __future__ import annotations

import shutil

import pytest
from tests.unit.report.conftest import content_of, training_of

from scalefold.errors import InputError
from scalefold.report import write_report


def test_evaluations_without_a_training_are_reported(make_run):
    """Of weights by themselves, as `scalefold evaluate` writes them by hand."""
    run = make_run(evaluated=(100,))
    training = training_of(run)
    alone = run / "evaluation" / training.name
    shutil.copytree(alone, alone.with_name("imported"))
    chosen = content_of(run)  # beside a training they are asked for by name
    assert chosen["provenance"]["run_key"] == training.name
    assert content_of(run, "imported")["evaluations"]
    shutil.rmtree(training)
    with pytest.raises(InputError, match=f"{training.name}, imp"):
        write_report(run)
    shutil.rmtree(alone)
    write_report(run)
    content = content_of(run)
    assert content["evaluations"] == chosen["evaluations"]
    assert content["training"].get("step", []) == []


def test_a_training_that_failed_before_it_wrote_anything_is_none(make_run):
    run = make_run()
    one = content_of(run)
    failed = run / "weights/0123456789ab"
    (failed / "lock").mkdir(parents=True)
    (failed / "training.log").write_text("error: why")
    assert content_of(run) == one


def test_one_of_several_trainings_is_chosen_by_its_key(make_run):
    run = make_run()
    one = content_of(run)
    key = training_of(run).name
    assert one["provenance"]["run_key"] == key
    shutil.copytree(training_of(run), run / "weights/0123456789ab")
    benchmark = run / "benchmarks/train" / f"{key}.tsv"
    shutil.copy(benchmark, benchmark.with_name("0123456789ab.tsv"))
    with pytest.raises(InputError, match=rf"0123456789ab, {key}"):
        write_report(run)
    with pytest.raises(InputError, match="'x'"):
        write_report(run, "x")
    assert content_of(run, key) == one
    other = content_of(run, "0123456789ab")
    assert (other["training"], other["evaluations"]) == (one["training"], [])
    assert other["timings"] == [t for t in one["timings"] if t["stage"] != "evaluate"]


def test_no_such_run(tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        write_report(tmp_path / "nothing")


@pytest.mark.parametrize("wrong", [".", "weights", "shards", "evaluation"])
def test_a_folder_that_is_no_run_is_refused(make_run, wrong):
    folder = (make_run() / wrong).resolve()
    folder = folder.parent if wrong == "." else folder
    with pytest.raises(InputError, match=f"{folder}"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_no_such_shards(make_run, tmp_path):
    run = make_run()
    with pytest.raises(InputError, match="nothing"):
        write_report(run, shards=tmp_path / "nothing")
    assert not (run / "report.html").exists()
