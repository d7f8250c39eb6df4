"""What a report says in words, by groups, and by comparison."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
from tests.unit.report.conftest import content_of, evaluation, metrics_records

from scalefold.report.calibration import head_calibration
from scalefold.report.clock import hours_trained
from scalefold.report.comparison import comparisons, paired
from scalefold.report.findings import findings
from scalefold.report.groups import by_group
from scalefold.report.inputs import RunResults
from scalefold.report.timeline import timeline
from scalefold.train.sessions import Session


def healthy(**changes) -> RunResults:
    records = [
        {**record, "skipped_steps": 0, "samples_per_second": 1.25} for record in metrics_records()
    ]
    return RunResults(**{"metrics": records, **changes})


def scored(step: int, **means: float) -> dict:
    return {
        "step": step,
        "mean": {split: {"lddt_ca": m} for split, m in means.items()},
        "chains": [],
    }


def bonds(peptide: int, broken: int) -> dict:
    return {"split": "train", "lddt_ca": None, "peptide_bonds": peptide, "broken_bonds": broken}


def session(started: float, ended: float, killed: bool = False) -> Session:
    return Session(started, ended, 1, None if killed else 100.0, None, None, {})


def test_nothing_stands_out_of_a_healthy_run():
    evaluations = [scored(0, train=0.1, validation=0.1), scored(9, train=0.6, validation=0.3)]
    assert findings(healthy(evaluations=evaluations), {}) == []


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("not finite", lambda records: records[120].update(skipped_steps=3)),
        ("jumps", lambda records: records[77].update(loss=900.0)),
        ("waits", lambda records: [r.update(loader_wait_seconds=0.2) for r in records]),
        ("slowed", lambda records: [r.update(samples_per_second=0.5) for r in records[100:]]),
    ],
)
def test_each_trouble_of_a_training_is_found_alone(word, change):
    files = healthy()
    change(files.metrics)
    (found,) = findings(files, {})
    assert word in found


def test_a_spike_is_named_with_its_step():
    files = healthy()
    files.metrics[77]["loss"] = 900.0
    (found,) = findings(files, {})
    assert "step 78" in found


def test_train_and_validation_that_part_are_named_with_the_step():
    evaluations = [
        scored(0, train=0.1, validation=0.1),
        scored(500, train=0.3, validation=0.25),
        scored(1000, train=0.6, validation=0.2),
    ]
    (found,) = findings(healthy(evaluations=evaluations), {})
    assert "after step 500" in found
    assert findings(healthy(evaluations=evaluations[:2]), {}) == []


@pytest.mark.parametrize("count", [1, 3, 19])
def test_a_mean_over_few_chains_is_named_with_their_number(count: int):
    last = with_scores({f"{i}abc_A": 0.5 for i in range(count)} | {"none_A": None})
    (found,) = findings(healthy(evaluations=[last]), {})
    assert f" {count} " in found


def test_only_held_out_chains_of_the_last_evaluation_are_counted_as_few():
    few, many = (with_scores({f"{i}abc_A": 0.5 for i in range(count)}) for count in (3, 20))
    train = {"chain_key": "1lcd_A", "split": "train", "lddt_ca": 0.9}
    assert findings(healthy(evaluations=[few, many]), {}) == []
    # A run that only shows that it memorises its few chains has no held-out score to doubt.
    memorised = {**scored(9, train=0.9), "chains": [train] * 3}
    assert findings(healthy(evaluations=[memorised]), {}) == []
    both = {**few, "chains": [train] * 20 + few["chains"]}
    (found,) = findings(healthy(evaluations=[both]), {})
    assert " 3 " in found


def test_sessions_that_were_killed_are_counted():
    sessions = [session(0, 3600, killed=True), session(7200, 9000)]
    found = findings(healthy(sessions=sessions), {})
    assert any("2 sessions" in one and "1 h 00 min" in one for one in found)
    assert any(one.startswith("1 of these") for one in found)


def test_confidence_that_is_off_is_named():
    bins = [{"count": 10, "mean_plddt": 80.0, "mean_lddt_ca": 50.0}]
    (found,) = findings(healthy(), {"validation": {"bins": bins}})
    assert "30 points higher" in found


def test_broken_bonds_are_a_share_of_all():
    last = scored(9, train=0.5)
    last["chains"] = [bonds(80, 12), bonds(20, 0)]
    (found,) = findings(healthy(evaluations=[last]), {})
    assert "12%" in found


def test_bonds_that_nobody_has_looked_at_are_not_broken():
    last = scored(9, train=0.5)
    last["chains"] = [bonds(80, 0), bonds(20, 0) | {"broken_bonds": None}]
    assert findings(healthy(evaluations=[last]), {}) == []
    del last["chains"][1]["broken_bonds"]
    assert findings(healthy(evaluations=[last]), {}) == []


@pytest.mark.parametrize(("weight", "mends"), [(0.0, False), (1.0, True)])
def test_broken_bonds_under_the_violation_loss_have_another_remedy(weight: float, mends: bool):
    last = scored(9, train=0.5)
    last["chains"] = [bonds(80, 12)]
    checkpoint = Mock(config={"loss": {"violation": weight}})
    (found,) = findings(healthy(evaluations=[last], checkpoints=[checkpoint]), {})
    assert ("scalefold relax" in found) == mends


def test_groups_hold_each_chain_once_a_kind():
    chains = evaluation(200, "", "")["chains"]
    groups = by_group(chains)
    for kind in ("length", "depth", "release"):
        assert sum(row["chains"] for row in groups if row["by"] == kind) == len(chains)
    (short,) = [
        r
        for r in groups
        if (r["split"], r["by"], r["group"]) == ("train", "length", "up to 100 residues")
    ]
    expected = [chain["lddt_ca"] for chain in chains if chain["split"] == "train"]
    assert short["lddt_ca"] == pytest.approx(sum(expected) / 4, abs=1e-6)


def test_groups_of_what_older_versions_did_not_note_are_left_out():
    chains = evaluation(200, "", "")["chains"]
    for chain in chains:
        del chain["alignment_rows"], chain["release_date"]
    assert {row["by"] for row in by_group(chains)} == {"length"}


def with_scores(scores: dict[str, float | None]) -> dict:
    chains = [{"chain_key": k, "split": "validation", "lddt_ca": v} for k, v in scores.items()]
    known = [value for value in scores.values() if value is not None]
    return {
        "step": 1,
        "mean": {"validation": {"lddt_ca": sum(known) / len(known)}},
        "chains": chains,
    }


def test_only_chains_that_both_have_scored_are_compared():
    one = with_scores({"a": 0.5, "b": 0.7, "c": None, "d": 0.9})
    other = with_scores({"a": 0.4, "b": 0.7, "c": 0.3, "e": 0.1})
    found = paired(one, other, "validation")
    assert (found["chains"], found["better"], found["worse"]) == (2, 1, 0)
    assert found["difference"] == pytest.approx(0.05)
    assert paired(one, with_scores({"z": 0.1}), "validation") is None


@pytest.mark.parametrize(("count", "known"), [(1, False), (3, False), (9, False), (10, True)])
def test_an_interval_takes_ten_chains(count: int, known: bool):
    keys = [f"{i}abc_A" for i in range(count)]
    one = with_scores({key: 0.55 + 0.05 * i for i, key in enumerate(keys)})
    found = paired(one, with_scores(dict.fromkeys(keys, 0.5)), "validation")
    assert (found["better"], found["worse"]) == (count, 0)
    assert found["difference"] == pytest.approx(0.05 + 0.025 * (count - 1))
    assert [found[end] is not None for end in ("low", "high")] == [known, known]


def test_the_interval_is_that_of_the_mean():
    noise = np.random.default_rng(3).normal(0.02, 0.1, 400)
    keys = [f"{i}abc" for i in range(400)]
    one = with_scores({key: 0.5 + float(x) for key, x in zip(keys, noise)})
    found = paired(one, with_scores(dict.fromkeys(keys, 0.5)), "validation")
    # Normal theory: 1.96 standard errors to both sides; the bootstrap's own noise is 2 % of that.
    half = 1.96 * noise.std() / math.sqrt(400)
    assert found["low"] == pytest.approx(noise.mean() - half, abs=0.1 * half)
    assert found["high"] == pytest.approx(noise.mean() + half, abs=0.1 * half)


def test_the_last_is_compared_with_the_first_the_best_and_others():
    steps = [
        {**with_scores({"a": value}), "step": step}
        for step, value in ((0, 0.1), (5, 0.6), (9, 0.5))
    ]
    rows = comparisons(steps, [("alphafold/model_1", with_scores({"a": 0.9}))], ["validation"])
    assert [(row["with"], round(row["difference"], 3)) for row in rows] == [
        ("step 0, the first", 0.4),
        ("step 5, the best", -0.1),
        ("alphafold/model_1", -0.4),
    ]
    assert comparisons(steps[:1], [], ["validation"]) == []


def test_hours_do_not_count_pauses():
    sessions = [session(0, 3600), session(7200, 10800)]
    times = [0.0, 1800.0, 5000.0, 9000.0, None]
    assert hours_trained(times, sessions) == [0.0, 0.5, 1.0, 1.5, None]
    assert hours_trained([3600.0, 7200.0], []) == [0.0, 1.0]


def test_the_timeline_places_sessions_pauses_and_evaluations():
    sessions = [session(0, 3600, killed=True), session(7200, 10800)]
    records = [{"step": 10, "time": 3600.0}, {"step": 20, "time": 10800.0}]
    found = timeline(sessions, records, [with_scores({"a": 0.5}) | {"step": 10}])
    assert [one["killed"] for one in found["sessions"]] == [True, False]
    assert found["pauses"] == [{"start": 1.0, "end": 2.0}]
    assert found["evaluated"] == [{"step": 10, "made": 1.0, "lddt_ca": 0.5}]
    assert timeline([], records, []) is None


def test_heads_are_calibrated_over_chains_and_pairs():
    bins = [[0, 0.0, 0.0]] * 8
    chains = [
        {"ptm": 0.5, "tm_score": 0.4, "pae_bins": [[10, 20.0, 30.0], *bins[1:]]},
        {"ptm": 0.7, "tm_score": 0.8, "pae_bins": [[30, 40.0, 50.0], *bins[1:]]},
        {"ptm": None, "tm_score": 0.8},
    ]
    found = head_calibration(chains)
    assert found["chains"] == 2
    assert found["mean_absolute_error"] == pytest.approx(0.1)
    (only,) = found["bins"]
    assert (only["pairs"], only["mean_pae"], only["mean_error"]) == (40, 1.5, 2.0)
    assert head_calibration([{"tm_score": 0.5}]) is None


def test_content_of_older_runs_has_all_parts(make_run):
    content = content_of(make_run(evaluated=()))
    assert content["comparisons"] == []
    assert content["groups"] == []
    assert content["head_calibration"] is None
