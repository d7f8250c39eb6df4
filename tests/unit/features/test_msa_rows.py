import numpy as np
import pytest

from scalefold.features.msa_rows import kept_rows, select_rows
from scalefold.features.sample_random import MsaRandom

NONE = np.zeros(0, np.int64)


def draws(rows, starts=NONE, seed=0):
    order = 1 + np.random.default_rng(seed).permutation(rows - 1)
    empty = np.zeros((0, 0), np.float32)
    return MsaRandom(np.asarray(starts, np.int64), order, empty, empty)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 10, 33, 100])
def test_kept_rows_is_algorithm_1(rows):
    """Against the pseudo-code, with sets."""
    generator = np.random.default_rng(rows)
    starts = generator.integers(1, max(rows, 2), 5)
    size = rows * 3 // 10
    deleted = {row for start in starts for row in range(start, start + size)}
    expected = [row not in deleted or row == 0 for row in range(rows)]
    np.testing.assert_array_equal(kept_rows(rows, starts, 0.3), expected)


def test_the_size_of_a_block_is_that_of_the_references():
    """Of 90 rows 0.7 are 63; 62.99… in float64, rounded down, would be 62."""
    assert kept_rows(90, np.asarray([1]), 0.7).sum() == 90 - 63


def test_the_query_stays_even_if_everything_else_goes():
    assert kept_rows(10, np.asarray([1]), 1.0).tolist() == [True] + [False] * 9


def test_centres_and_others_are_the_kept_rows():
    starts = [3, 40]
    choice = select_rows(50, draws(50, starts), 8, 0.1)
    assert choice.centres[0] == 0
    assert len(choice.centres) == 8
    used = np.concatenate([choice.centres, choice.others])
    expected = np.flatnonzero(kept_rows(50, np.asarray(starts), 0.1))
    np.testing.assert_array_equal(np.sort(used), expected)


def test_centres_are_uniform_over_rows():
    counts = np.zeros(11)
    for seed in range(2000):
        counts[select_rows(11, draws(11, seed=seed), 4, 0.3).centres] += 1
    assert counts[0] == 2000
    # each other row with probability 3/10
    assert abs(counts[1:] - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


def test_shallow_alignment_has_fewer_centres_and_no_others():
    choice = select_rows(5, draws(5), 8, 0.3)
    assert len(choice.centres) == 5
    assert len(choice.others) == 0


def test_one_cluster_is_the_query():
    choice = select_rows(5, draws(5), 1, 0.3)
    assert choice.centres.tolist() == [0]
    assert sorted(choice.others) == [1, 2, 3, 4]


def test_rows_of_a_predicted_structure_are_drawn_uniformly_and_without_repetition():
    starts = [3, 40]
    kept = set(np.flatnonzero(kept_rows(50, np.asarray(starts), 0.1)))
    counts = np.zeros(50)
    for seed in range(1000):
        choice = select_rows(50, draws(50, starts, seed), 8, 0.1, max_rows=20)
        used = np.concatenate([choice.centres, choice.others])
        assert len(choice.centres) == 8
        assert len(used) == len(set(used)) == 20
        assert set(used) <= kept
        counts[used] += 1
    assert counts[0] == 1000
    share = 19 / (len(kept) - 1)
    others = counts[sorted(kept - {0})]
    assert abs(others - 1000 * share).max() < 5 * np.sqrt(1000 * share * (1 - share))


def test_fewer_rows_than_are_asked_for_are_all_used():
    choice = select_rows(5, draws(5), 3, 0.3, max_rows=1000)
    assert sorted([*choice.centres, *choice.others]) == [0, 1, 2, 3, 4]
