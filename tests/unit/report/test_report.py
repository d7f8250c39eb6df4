"""What stands on the page and in the JSON of a report."""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from tests.unit.report.conftest import STEPS, content_of, training_of
from typer.testing import CliRunner

from scalefold.checkpoint.read import ready_mark
from scalefold.cli import app
from scalefold.errors import InputError
from scalefold.io.atomic import file_sha256
from scalefold.report import write_report
from scalefold.report.figures import training_figures

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Text, ids and references of a page; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self.headings = 0
        self.tables = 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if "id" in named:
            self.ids.append(named["id"])
        self.references += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")
        ]
        if tag == "th":
            assert named.get("scope") in ("col", "row")
            self.headings += 1
        self.tables += tag == "table"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def report_of(run: Path) -> tuple[str, Page, dict]:
    write_report(run)
    text = (run / "report.html").read_text("utf-8")
    return text, Page(text), json.loads((run / "report.json").read_text("utf-8"))


def test_says_what_ran_and_how_good_it_became(make_run):
    _, page, content = report_of(make_run())
    words = " ".join(" ".join(page.text).split())
    assert "200 of 200 steps, 200 samples" in words
    speed = content["summary"]["samples_per_second_median"]
    assert f"{speed:.2f} samples/s (median of logged steps)" in words
    assert "chains: 14 train, 4 validation, 3 template; " in words
    assert "draws from 9 of the 14 train chains." in words
    scores = content["summary"]["lddt_ca"]["validation"]
    last, first = (f"{scores[name]['value']:.3f}" for name in ("last", "first"))
    skipped = "1 skipped, longer than evaluation.max_length"
    assert f"validation {last} over 2 of 3 chains; {skipped} at step 200, the best " in words
    assert f"the best first {first} over 2 of 3 chains at step 0 " in words
    for key in ("1a8o_A", "102m_A", "9xyz_A", "4bad_A", "not a gzip file"):
        assert key in words
    assert content["notes"] == []


def test_says_how_good_the_last_checkpoint_is_and_the_best_and_over_how_many_chains(make_run):
    run = make_run(evaluated=(0, 100, 150))
    path = training_of(run, "evaluation") / "step-00000150.json"
    tree = json.loads(path.read_text())
    tree["mean"]["validation"]["lddt_ca"] = 0.2
    path.write_text(json.dumps(tree))
    path = training_of(run, "evaluation") / "step-00000100.json"
    tree = json.loads(path.read_text())
    (scored, *_) = [c for c in tree["chains"] if c["split"] == "validation"]
    tree["chains"].remove(scored)
    tree["failed"] = [{**scored, "reason": "x.arrow, row 3: damaged. Pack it again"}]
    path.write_text(json.dumps(tree))
    _, page, content = report_of(run)
    words = " ".join(" ".join(page.text).split())
    best = content["summary"]["lddt_ca"]["validation"]["best"]["value"]
    assert "Last mean lDDT-Cα, validation 0.200 over 2 of 3 chains" in words
    assert f" at step 150 best {best:.3f} over 1 of 3 chains at step 100 " in words
    assert " first 0.170 over 2 of 3 chains at step 0 " in words


def test_other_weights_stand_beside_the_last_evaluation(make_run, tmp_path):
    run, other = make_run(evaluated=(0, 200)), tmp_path / "alphafold" / "model_1.json"
    tree = json.loads((training_of(run, "evaluation") / "step-00000000.json").read_text())
    tree["chains"] = tree["chains"][:3]
    other.parent.mkdir()
    other.write_text(json.dumps(tree))
    content = write_report(run, against=[other])
    words = " ".join(" ".join(Page((run / "report.html").read_text("utf-8")).text).split())
    assert "alphafold/model_1 train 4 0.170" in words
    (row,) = [row for row in content["comparisons"] if row["with"] == "alphafold/model_1"]
    assert (row["split"], row["chains"], row["better"]) == ("train", 3, 3)
    assert row["low"] is row["high"] is None
    assert "too few chains for an interval" in words
    other.write_text("{}")
    with pytest.raises(InputError, match=r"model_1\.json"):
        write_report(run, against=[other])


def test_the_configuration_names_other_weights_too(make_run, tmp_path):
    run = make_run()
    other = tmp_path / "given/before.json"
    other.parent.mkdir()
    shutil.copy(training_of(run, "evaluation") / "step-00000000.json", other)
    config = tmp_path / "my.yaml"
    data = {"chains": "x", "mirrors": {"mmcif": ["x"], "alignments": ["x"]}}
    evaluation = {"recycling": 3, "splits": ["train", "validation"]}
    tree = {"data": data, "evaluation": evaluation, "report": {"against": [str(other)]}}
    config.write_text(yaml.safe_dump(tree))
    done = CliRunner().invoke(app, ["report", str(run), "-c", str(config)])
    assert done.exit_code == 0, done.output
    content = json.loads((run / "report.json").read_text("utf-8"))
    assert [row["name"] for row in content["others"]] == ["given/before"]
    other.unlink()
    done = CliRunner().invoke(app, ["report", str(run), "-c", str(config)])
    assert done.exit_code == 2
    assert str(other) in done.output


def test_chains_that_failed_stand_beside_the_mean_that_lacks_them(make_run):
    run = make_run()
    path = training_of(run, "evaluation") / "step-00000200.json"
    tree = json.loads(path.read_text())
    tree["chains"] = [c for c in tree["chains"] if c["chain_key"] != "1a8o_A"]
    reason = {"reason": "x.arrow, row 3: <damaged>. Pack it again"}
    tree["failed"] = [{"chain_key": "1a8o_A", "split": "train", "length": 70, **reason}]
    tree["counts"]["train"] = {"scored": 3, "skipped": 0, "failed": 1}
    path.write_text(json.dumps(tree))
    _, page, content = report_of(run)
    words = " ".join(" ".join(page.text).split())
    last = content["summary"]["lddt_ca"]["train"]["last"]
    over = "3 of 4 chains; 1 failed: 1a8o_A (x.arrow, row 3: <damaged>)"
    assert last["over"] == over
    assert f"Last mean lDDT-Cα, train {last['value']:.3f} over {over} at step 200" in words
    assert "200 train 3 of 4 " in words
    assert content["notes"] == []


def test_figures_are_there_with_words_for_those_who_cannot_see_them(make_run):
    text, page, _ = report_of(make_run())
    figures = re.findall(
        r'<svg viewBox="[^"]+" role="img" aria-labelledby="([\w-]+) ([\w-]+)">', text
    )
    # loss, lDDT, five terms, gradient norm, rate, speed, loader; lDDT, scores;
    # distribution, length, depth; calibration; timeline
    assert len(figures) == 11 + 2 + 3 + 1 + 1
    assert {name for pair in figures for name in pair} <= set(page.ids)
    assert "Loss term: masked MSA" in text
    assert "lDDT-Cα by checkpoint" in text
    assert "Mean lDDT-Cα over 5 checkpoints: validation from 0.170 to" in text


def test_is_one_file_that_needs_no_network(make_run):
    text, page, _ = report_of(make_run())
    # Only the configuration may name web addresses, as text.
    assert [reference for reference in page.references if not reference.startswith("#")] == []
    without_config = re.sub(r"<details>.*</details>", "", text, flags=re.DOTALL)
    assert "http" not in without_config
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_ids_are_unique_and_references_resolve(make_run):
    text, page, _ = report_of(make_run())
    assert len(page.ids) == len(set(page.ids))
    targets = {reference[1:] for reference in page.references}
    targets |= set(re.findall(r"url\(#([^)]*)\)", text))
    assert targets <= set(page.ids)


def test_colours_of_figures_follow_the_page(make_run):
    text, _, _ = report_of(make_run())
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--series-1)" in svgs
    assert set(re.findall(r"#[0-9a-f]{6}\b", svgs)) <= {"#000000"}


def test_names_are_escaped(make_run):
    run = make_run(name="a<script>alert(1)")
    path = training_of(run, "evaluation") / "step-00000200.json"
    path.write_text(path.read_text("utf-8").replace("1a8o_A", "<img src=x>$x_A"), "utf-8")
    text, _, content = report_of(run)
    assert "<b>x</b>" not in text
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert "&lt;b&gt;x&lt;/b&gt;_A" in text
    assert "<img src=x>$x_A" in {row["chain_key"] for row in content["chains"]["rows"]}
    assert content["run"] == run.name


def test_provenance_is_complete(make_run):
    run = make_run()
    text, page, content = report_of(run)
    facts = content["provenance"]
    for value in (
        facts["commit"],
        facts["config_hash"],
        facts["data_manifest_sha256"],
        facts["data_source"]["sha256"],
        "torch 2.13.0 on cpu",
        "1 file, 18 rows, 4.2 MB",
        "2026-09-21 14:13:20 UTC to 2026-09-21 14:16:00 UTC",
    ):
        assert value in text
    start = page.text.index("Full configuration")
    config = next(t for t in page.text[start + 1 :] if t.strip())
    assert yaml.safe_load(config) == facts["config"]


def test_provenance_names_the_data_that_a_training_began_with(make_run):
    """As `training.accept_new_data` lets it go on."""
    run = make_run()
    assert content_of(run)["provenance"]["former_data"] == []
    path = training_of(run) / f"step-{STEPS:08d}/checkpoint.json"
    metadata = json.loads(path.read_text("utf-8"))
    former = [{"until_step": 70, "data_manifest_sha256": "7a" * 32}]
    path.write_text(json.dumps({**metadata, "former_data": former}), "utf-8")
    ready_mark(path.parent).write_text(file_sha256(path))
    text, _, content = report_of(run)
    assert content["provenance"]["former_data"] == former
    assert former[0]["data_manifest_sha256"] in text


def test_chains_table_and_gain(make_run):
    content = content_of(make_run())
    rows = {row["chain_key"]: row for row in content["chains"]["rows"]}
    assert content["chains"]["step"] == 200
    assert rows["1a8o_A"]["lddt_ca_gain"] == pytest.approx(rows["1a8o_A"]["lddt_ca"] - 0.17)


def test_timings_are_added_up_by_stage(make_run):
    content = content_of(make_run())
    rows = {row["stage"]: row for row in content["timings"]}
    assert rows["evaluate"] == {
        "stage": "evaluate",
        "jobs": 2,
        "seconds": 20.0,
        "max_rss_mb": 705.0,
    }
    assert rows["index"]["max_rss_mb"] is None
    # 3.6 MB are the shell's: the job ended before its program was there to be measured.
    assert (rows["config"]["seconds"], rows["config"]["max_rss_mb"]) == (0.6, None)


def test_training_time_is_one_number_on_page_and_in_json(make_run):
    text, _, content = report_of(make_run())
    rows = {row["stage"]: row for row in content["timings"]}
    assert content["summary"]["training_seconds"] == rows["train"]["seconds"] == 165.0
    assert text.count("2 min 45 s") == 2  # the card and the table
    assert "2 min 43 s" not in text  # Snakemake's, of its last job


def test_training_time_is_unknown_without_sessions(make_run):
    run = make_run()
    (sessions,) = run.glob("weights/*/sessions.jsonl")
    sessions.unlink()
    assert content_of(run)["summary"]["training_seconds"] is None


def test_time_of_a_training_is_that_of_all_its_sessions(make_run):
    run = make_run()
    (training,) = (run / "weights").iterdir()
    last = json.loads((training / "metrics.jsonl").read_text().splitlines()[-1])
    started, heard = 1790000000.0, last["time"]
    events = [
        {"event": "start", "step": 0, "time": started - 100, "processes": 2},
        {"event": "end", "step": 10, "time": started - 70, "max_rss_mb": 900.0},
        {"event": "start", "step": 10, "time": started, "processes": 4},  # and was killed
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (training / "sessions.jsonl").write_text(lines)
    (row,) = [row for row in content_of(run)["timings"] if row["stage"] == "train"]
    assert row == {
        "stage": "train",
        "jobs": 2,
        "seconds": pytest.approx(30 + heard - started),
        "max_rss_mb": 900.0,
    }
    (training / "sessions.jsonl").write_text(lines + '{"event": "st')
    content = content_of(run)
    assert any("sessions.jsonl" in note for note in content["notes"])


def test_a_ladder_of_the_benchmark_is_shown(make_run):
    run = make_run()
    assert 'id="speed"' not in report_of(run)[0]
    row = {
        "rung": "baseline",
        "title": "plain <PyTorch>",
        "step_seconds_by_recycling": [1.5, 2.5],
        "mean_step_seconds": 2.0,
        "launches_by_recycling": [40000, 50000],
        "gpu_busy_seconds_by_recycling": [1.4, 2.4],
        "peak_memory_gib": 20.25,
        "flop_utilisation": 0.05,
    }
    ladder = {
        "benchmark": "ladder",
        "device": "Some GPU",
        "torch": "2.11",
        "commit": None,
        "rungs": [row, row | {"rung": "graphs", "mean_step_seconds": 0.5}],
    }
    (run / "ladder.json").write_text(json.dumps(ladder))
    html, _, content = report_of(run)
    assert content["ladder"] == ladder
    for text in ("Some GPU", "plain &lt;PyTorch&gt;", "40,000", "×4.0", "5.0%"):
        assert text in html


@pytest.mark.parametrize("text", ["{", "[]", '{"benchmark": "step", "rungs": []}'])
def test_a_file_that_is_no_ladder_is_left_out_and_named(make_run, text):
    run = make_run()
    (run / "ladder.json").write_text(text)
    assert any("ladder.json: left out" in note for note in content_of(run)["notes"])


def test_the_same_files_give_the_same_bytes(make_run, tmp_path):
    run = make_run()
    write_report(run, out_html=tmp_path / "a.html", out_json=tmp_path / "a.json")
    write_report(run, None, run / "shards", tmp_path / "b.html", tmp_path / "b.json")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_line_cut_off_by_a_kill_is_left_out_and_named(make_run):
    run = make_run()
    path = training_of(run) / "metrics.jsonl"
    path.write_text(path.read_text("utf-8")[:-40], "utf-8")
    text, _, content = report_of(run)
    assert content["training"]["step"][-1] == 199
    note = "metrics.jsonl: 1 line was not written to the end and left out (line 200)."
    assert content["notes"] == [note]
    assert note in text


def test_a_training_that_has_just_begun_gives_a_report_that_says_so(tmp_path):
    (tmp_path / "run/weights/0123456789ab").mkdir(parents=True)
    text, _, content = report_of(tmp_path / "run")
    assert len(content["notes"]) == 5
    for words in (
        "No checkpoint has been evaluated yet.",
        "Nothing has been logged yet.",
        "No chain was set aside.",
    ):
        assert words in text
    assert "<svg" not in text


def test_before_the_first_evaluation(make_run):
    text, _, content = report_of(make_run(evaluated=()))
    assert content["chains"]["rows"] == []
    assert "No evaluations yet: evaluation/ holds no finished one." in content["notes"]
    assert "Loss, weighted sum" in text


def test_after_a_single_evaluation_there_is_no_gain(make_run):
    content = content_of(make_run(evaluated=(100,)))
    assert all(row["lddt_ca_gain"] is None for row in content["chains"]["rows"])


def test_one_record_and_records_without_numbers(make_run):
    run = make_run()
    record = {"step": 1, "loss": None, "lddt_ca": 0.2, "loss/fape": None}
    (training_of(run) / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    text, _, content = report_of(run)
    assert content["summary"]["loss"] is None
    assert "Loss, weighted sum" not in text
    assert "lDDT-Cα of training crops" in text


def test_the_words_of_a_curve_name_the_steps_that_its_numbers_are_of():
    values = {"step": [10, 20, 30, 40], "loss": [None, 8.0, 6.0, None]}
    (figure,) = training_figures(values)
    assert "over 4 logged steps, from 8 at step 20 to 6 at step 30." in figure.svg


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"step": 50', "not an evaluation"),
        ('{"step": 50}', "checkpoint is missing"),
        ("[]", "left"),
    ],
)
def test_a_damaged_evaluation_is_left_out_and_named(make_run, content, said):
    run = make_run()
    (training_of(run, "evaluation") / "step-00000050.json").write_text(content)
    report = content_of(run)
    assert [e["step"] for e in report["evaluations"]] == [0, 100, 150, 200]
    assert said in report["notes"][0]


def at(tree, path: tuple, value):
    """A copy of a tree with another value at a path; deleted where it is `...`."""
    tree = json.loads(json.dumps(tree))
    *parents, last = path
    inner = functools.reduce(operator.getitem, parents, tree)
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return tree


def test_partial_evaluations_are_left_out_and_named(make_run):
    run = make_run()
    folder = training_of(run, "evaluation")
    whole = json.loads((folder / "step-00000050.json").read_text())
    changes: dict[tuple, list] = {
        ("mean",): [..., None, [], {"train": None}, {"train": {}}],
        ("mean", "train", "lddt_ca"): [..., "0.5", math.nan, 1e300, [], {}],
        ("mean", "train", "tm_score"): [..., "x"],
        ("counts",): [[], {}, {"train": {"scored": 1}}],
        ("counts", "train"): [..., 3],
        ("chains",): [None, {}, [None], ["x"], [[]]],
        ("chains", 0, "split"): [..., None, 3],
        ("chains", 0, "length"): ["9", -1, 1.5],
        ("chains", 0, "per_residue"): [..., None, {}, {"plddt": [1.0]}, {"plddt": 3}],
        ("chains", 0, "per_residue", "plddt", 0): ["x", math.inf],
        ("skipped",): [None, [{}], [{"chain_key": "x", "split": "train"}]],
        ("failed",): [..., {"a": 1}],
        ("step",): [None, "50", -1, 10**9, True, 1.5],
    }
    spoilt = [at(whole, path, value) for path, values in changes.items() for value in values]
    for number, evaluation in enumerate(spoilt):
        (folder / f"step-{number:08d}x.json").write_text(json.dumps(evaluation))
    (folder / "step-y.json").write_text("[" * 100_000)
    (folder / "step-z.json").write_bytes(b"\xff")
    (folder / "step-folder.json").mkdir()
    content = content_of(run)
    assert [e["step"] for e in content["evaluations"]] == [0, 50, 100, 150, 200]
    assert sum("left out" in note for note in content["notes"]) == len(spoilt) + 3


def test_damaged_metrics_and_sessions_are_left_out_and_named(make_run):
    run = make_run()
    metrics = training_of(run) / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    spoilt = ['{"step": 1e400}', '{"step": "3"}', '{"step": 3, "loss": NaN}', "[" * 50_000, "[]"]
    spoilt += ['{"step": 3, "loss": "x"}', '{"step": 3, "time": 1e30}', '{"step": -1}', "7"]
    spoilt += ['{"step": 3, "loss": 1e308}', '{"step": 3, "loss": [1]}', '{"step": true}']
    metrics.write_text("\n".join([*lines, *spoilt]) + "\n")
    (training_of(run) / "sessions.jsonl").write_text('{"event": "start", "time": NaN}\n')
    content = report_of(run)[2]
    assert len(content["training"]["step"]) == len(lines)
    assert [f"{len(spoilt)} lines" in content["notes"][0], len(content["notes"])] == [True, 2]


def test_names_with_dollar_signs_are_taken_as_they_are(make_run):
    run = make_run()
    name = r"$\foo$ \ud800"
    path = training_of(run, "evaluation") / "step-00000050.json"
    whole = json.loads(path.read_text())
    odd = whole | {"mean": {name: whole["mean"]["train"]}, "device": "\ud800", "counts": None}
    path.write_text(json.dumps(odd))
    record = {"step": 1000, "loss": 1.0, "loss/$\\foo$": 2.0}
    with (training_of(run) / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    assert "$\\foo$" in report_of(run)[0]


def test_chains_without_scores(make_run):
    run = make_run()
    path = training_of(run, "evaluation") / "step-00000200.json"
    evaluation = json.loads(path.read_text("utf-8"))
    for chain in evaluation["chains"]:
        if chain["split"] == "validation":
            chain.update(lddt_ca=None, tm_score=None)
            chain["per_residue"]["lddt_ca"] = [None] * chain["length"]
    evaluation["mean"]["validation"]["lddt_ca"] = None
    path.write_text(json.dumps(evaluation))
    _, _, content = report_of(run)
    assert content["calibration"]["validation"]["residues"] == 0
    assert content["calibration"]["validation"]["correlation"] is None
    assert content["summary"]["lddt_ca"]["validation"]["last"]["step"] == 150
    (note,) = content["notes"]
    assert note.startswith("The evaluation of step 200 has no mean lDDT-Cα of validation: 0 of 3")
    assert note.endswith("max_length; 2 without lDDT-Cα: 102m_A, 1ay7_B.")


def test_evaluations_that_an_earlier_training_left_are_named(make_run):
    run = make_run()
    folder = training_of(run, "evaluation")
    evaluation = json.loads((folder / "step-00000200.json").read_text("utf-8"))
    (folder / "step-00000300.json").write_text(json.dumps({**evaluation, "step": 300}))
    (note,) = content_of(run)["notes"]
    assert note.startswith("Evaluations of step 300 are of an earlier training run")
    assert note.endswith("the last checkpoint is of step 200.")


def test_a_training_that_was_asked_for_fewer_steps_is_told_whole(make_run):
    """Asked for fewer steps, it is kept, and its folder gets a session more, no new checkpoint."""
    run = make_run()
    before = content_of(run)
    with (training_of(run) / "sessions.jsonl").open("a", encoding="utf-8") as log:
        for event in ("start", "end"):
            line = {"event": event, "step": 200, "time": 1790001000.0, "processes": 1}
            log.write(json.dumps(line) + "\n")
    content = content_of(run)
    assert content["summary"] == before["summary"]
    assert (content["summary"]["step"], content["summary"]["planned_steps"]) == (200, 200)
    assert content["notes"] == []


def test_results_that_do_not_belong_together_are_named(make_run):
    run = make_run()
    path = training_of(run, "evaluation") / "step-00000050.json"
    evaluation = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**evaluation, "data_manifest_sha256": "feed" * 16}))
    content = content_of(run)
    (note,) = content["notes"]
    assert note.startswith("Evaluations of step 50 are of other shards than those of this report")


def test_a_damaged_checkpoint_and_missing_shards_are_notes(make_run):
    run = make_run()
    (training_of(run) / "step-00000200" / "checkpoint.json").write_text("{")
    shutil.rmtree(run / "shards")
    content = content_of(run)
    assert content["provenance"]["checkpoints"] == [0]
    assert any("step-00000200" in note for note in content["notes"])
    assert any("manifest cannot be read" in note for note in content["notes"])


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (0, "Everything else went on.</p>"),
        (1, "Everything else went on. The structure of one stays a template for other chains.</p>"),
        (2, "Everything else went on. The structures of 2 stay templates for other chains.</p>"),
    ],
)
def test_chains_set_aside_that_stay_templates_are_counted(make_run, kept: int, words: str):
    run = make_run()
    path = run / "shards/manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest.pop("sha256", None)
    manifest["counts"]["chains set aside, kept as templates"] = kept
    path.write_text(json.dumps(manifest), "utf-8")
    assert words in report_of(run)[0]


def test_what_a_fine_tuning_did_not_list_is_set_aside_too(make_run):
    run = make_run()
    before = content_of(run)["rejected"]
    (run / "input").mkdir()
    row = {"chain_key": "cut.pdb", "stage": "structures", "reason": "has no atoms"}
    lines = ("\t".join(row), "\t".join(row.values()))
    (run / "input/rejected.tsv").write_text("\n".join(lines) + "\n")
    assert content_of(run)["rejected"] == [row, *before]


def test_a_damaged_table_of_rejected_chains_is_a_note(make_run):
    run = make_run()
    assert len(content_of(run)["rejected"]) > 1
    (run / "shards/rejected.tsv").write_text("chain_key\tstage\treason\n4bad_A\tfe")
    content = content_of(run)
    assert {row["stage"].partition(" ")[0] for row in content["rejected"]} <= {"evaluate"}
    assert any("rejected.tsv, line 2: 2 tab-separated fields" in n for n in content["notes"])
