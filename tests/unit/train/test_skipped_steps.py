import logging
from dataclasses import replace
from math import inf, nan

import pytest

from scalefold.train.skipped_steps import DivergedError, SkippedSteps, diagnosis
from scalefold.train.step_exchange import Notice
from scalefold.train.step_numbers import HostNumbers

GOOD = {"loss": 1.0, "lddt_ca": 0.5, "grad_norm": 2.0, "loss/fape": 1.0, "loss/chi": 1.0}


def _numbers(*samples: dict[str, float]) -> HostNumbers:
    rows = [GOOD | sample for sample in samples]
    return HostNumbers(
        per_sample=rows, means=rows[0], gradient_norm=1.0, finite=all(row == GOOD for row in rows),
        absent=False, notice=Notice(),
    )  # fmt: skip


def test_a_rank_whose_samples_are_sound_says_so(caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = replace(_numbers({}), finite=False)
    SkippedSteps(max_in_a_row=1).check(3, elsewhere, ["1aaa_A"])
    assert "step 3 skipped, not finite: see the other ranks" in caplog.text


def test_counts_and_stops_after_too_many_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedSteps(max_in_a_row=2)
    bad = _numbers({}, {"loss/fape": nan, "loss": nan, "grad_norm": nan})
    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            skipped.check(step, bad, ["1aaa_A", "1bbb_B"])
    assert "step 2 skipped" in caplog.text
    assert "chain 1bbb_B: loss terms fape (2 in a row, 2 in all)" in caplog.text
    assert "1aaa_A" not in caplog.text
    skipped.check(3, _numbers({}, {}), ["1aaa_A", "1bbb_B"])
    assert (skipped.skipped, skipped.in_a_row) == (2, 0)
    for step in (4, 5):
        skipped.check(step, bad, ["1aaa_A", "1bbb_B"])
    with pytest.raises(DivergedError) as error:
        skipped.check(6, bad, ["1aaa_A", "1bbb_B"])
    for part in ("step 6", "3 steps in a row", "chain 1bbb_B: loss terms fape", "learning_rate"):
        assert part in str(error.value)


def test_the_first_cause_is_named() -> None:
    keys = ["1aaa_A"]
    spoilt = {"loss": nan, "grad_norm": nan}
    assert diagnosis(_numbers(spoilt | {"loss/chi": inf}), keys) == "chain 1aaa_A: loss terms chi"
    assert "weighted loss" in diagnosis(_numbers(spoilt), keys)
    assert "gradient, though" in diagnosis(_numbers({"grad_norm": inf}), keys)


def test_zero_tolerance_stops_at_once() -> None:
    with pytest.raises(DivergedError):
        SkippedSteps(max_in_a_row=0).check(1, _numbers({"loss": nan}), ["1aaa_A"])
