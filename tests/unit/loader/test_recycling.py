import numpy as np
import pytest

from scalefold.loader.recycling import recycling_count


def counts(steps, draw, seed=0, top=3):
    return [recycling_count(seed, step, top, draw) for step in steps]


def test_stratified_has_every_count_once_in_each_cycle():
    found = counts(range(4000), "stratified")
    cycles = [tuple(found[i : i + 4]) for i in range(0, 4000, 4)]
    assert all(sorted(cycle) == [0, 1, 2, 3] for cycle in cycles)
    assert len(set(cycles)) == 24  # all orders occur


def test_uniform_is_uniform_and_not_stratified():
    found = counts(range(4000), "uniform")
    assert abs(np.bincount(found, minlength=4) - 1000).max() < 4.5 * np.sqrt(4000 * 0.25 * 0.75)
    assert any(sorted(found[i : i + 4]) != [0, 1, 2, 3] for i in range(0, 40, 4))


@pytest.mark.parametrize("draw", ["uniform", "stratified"])
def test_any_step_at_once(draw):
    forwards = counts(range(50), draw)
    assert counts(reversed(range(50)), draw) == forwards[::-1]
    assert counts(range(50), draw, seed=1) != forwards
    assert counts(range(10), draw, top=0) == [0] * 10
