import numpy as np
import pytest

from scalefold.features.random import (
    integers_below,
    key_bits,
    name_counter,
    permutation,
    unit_float_pairs,
    unit_floats,
    words,
)


def test_streams_are_pinned():
    """A change here would change what every earlier run drew."""
    assert key_bits("sample", 1, 2) == 0xD8E21BBF8A2593AB99DFF8DF729D45A4
    assert words(2, "sample", 1, 2).tolist() == [10465768588954832125, 4861302841388734794]


def test_a_stream_is_a_pure_function_of_its_key():
    first = words(100, "a", 1, -2)
    np.testing.assert_array_equal(first, words(100, "a", 1, -2))
    np.testing.assert_array_equal(first[:10], words(10, "a", 1, -2))
    for other in (("b", 1, -2), ("a", 1, 2), ("a", -2, 1), ("a", 1), ("a", 1, -2, 0)):
        assert not np.isin(words(100, *other), first).any()


def test_unit_floats_are_uniform():
    values = unit_floats(words(100_000, "uniform"))
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    # chi-square with 19 degrees of freedom: 43.8 at p = 0.001
    assert ((counts - 5000) ** 2 / 5000).sum() < 43.8


def test_pairs_are_uniform_and_independent():
    high, low = unit_float_pairs(words(100_000, "pairs"))
    assert high.dtype == low.dtype == np.float32
    for values in (high, low):
        assert 0 <= values.min() < values.max() < 1
        assert abs(values.mean() - 0.5) < 4 / np.sqrt(12 * 100_000)
    assert abs(np.corrcoef(high, low)[0, 1]) < 4 / np.sqrt(100_000)


def test_float32_pairs_never_round_up_to_one():
    high, low = unit_float_pairs(np.asarray([2**64 - 1], np.uint64))
    assert high[0] < 1
    assert low[0] < 1


@pytest.mark.parametrize("bound", [1, 2, 7])
def test_integers_cover_the_range(bound):
    values = integers_below(unit_floats(words(10_000, "integers")), bound)
    counts = np.bincount(values, minlength=bound)
    assert len(counts) == bound
    assert abs(counts - 10_000 / bound).max() < 5 * np.sqrt(10_000 / bound)


def test_permutation_is_one():
    order = permutation(words(1000, "order"))
    np.testing.assert_array_equal(np.sort(order), np.arange(1000))
    assert permutation(words(0, "order")).tolist() == []


def test_names_make_distinct_counters():
    counters = {name_counter(f"{i}abc_A") for i in range(1000)}
    assert len(counters) == 1000
    assert all(0 <= c < 2**63 for c in counters)
