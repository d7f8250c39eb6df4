"""Where a run falls behind the one beside it."""

import re

import numpy as np
import pytest

from scalefold.report.falls_behind import falls_behind
from scalefold.report.other_run import beside

NOISE = 0.15  # of FAPE, as crops of many proteins make it


def columns(worse=0.0, since=0, seed=0, records=100, every=10, noise=NOISE):
    """A training that has learnt less well since a step, by a share of FAPE and of lDDT."""
    steps = every * np.arange(1, records + 1)
    noises = noise * np.random.default_rng(seed).standard_normal((2, records))
    change = np.where(steps > since, worse, 0.0)
    fape = (0.8 + 0.6 * np.exp(-steps / 300)) * (1 + change) * (1 + noises[0])
    lddt = (0.5 - 0.4 * np.exp(-steps / 300)) * (1 - change) * (1 + noises[1])
    return {"step": steps.tolist(), "loss/fape": fape.tolist(), "lddt_ca": lddt.tolist()}


def said(here, there, settings=None):
    other = {"run": "healthy", "training": there, "provenance": {"config": None}}
    compared = beside(here, None, other)
    return list(falls_behind(here, compared and compared | {"settings": settings}))


@pytest.mark.parametrize("every", [5, 10, 25])
def test_a_run_that_falls_behind_is_named_with_the_step(every):
    there = columns(seed=1, every=every, records=1000 // every)
    (found,) = said(columns(0.4, since=500, seed=2), there, settings=[{"key": "x"}])
    assert "After 1,000 steps" in found
    partings = [int(step) for step in re.findall(r"since step (\d+)", found)]
    assert len(partings) == 2
    # None of 300 other draws of the noise is farther off than that.
    assert all(abs(step - 500) <= 100 for step in partings)
    assert "differ: 1" in found


def test_only_the_curve_that_is_worse_is_named():
    here, there = columns(0.4, seed=1), columns(seed=2)
    here["lddt_ca"] = there["lddt_ca"]
    (found,) = said(here, there)
    assert "FAPE" in found
    assert "lDDT" not in found


def test_a_run_that_is_ahead_is_not_behind():
    assert said(columns(seed=1), columns(0.4, seed=2)) == []


def test_alike_runs_are_not_behind_however_exactly_they_are_known():
    assert said(columns(0.02, seed=1, noise=1e-4), columns(seed=2, noise=1e-4)) == []
    assert said(columns(), columns()) == []


def test_noise_is_not_behind():
    # One of 1,000 is what the docstring promises; the seeds are fixed.
    runs = [columns(seed=seed) for seed in range(200)]
    assert [found for pair in zip(runs[::2], runs[1::2]) for found in said(*pair)] == []


def test_a_spike_is_not_behind():
    here = columns(seed=1)
    here["loss/fape"][-1] = 1000.0
    assert said(here, columns(seed=2)) == []


def test_a_run_that_has_caught_up_is_not_behind():
    here, there = columns(2.0, since=700, seed=1), columns(seed=2)
    for key in ("loss/fape", "lddt_ca"):
        here[key][-15:] = [0.9 * x if key != "lddt_ca" else 1.1 * x for x in there[key][-15:]]
    assert said(here, there) == []


def test_short_curves_and_gaps_are_no_ground():
    assert said(columns(0.9, seed=1, records=30), columns(seed=2)) == []
    here = columns(0.4, seed=1)
    here["loss/fape"][-1] = here["lddt_ca"][3] = None
    assert len(said(here, columns(seed=2))) == 1
    assert said({}, columns()) == []
