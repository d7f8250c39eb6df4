from __future__ import annotations

import math

import pytest

from scalefold.report.smoothing import POINTS_SHOWN, smoothed, smoothing_window, thinned


def test_a_constant_stays_and_a_line_keeps_its_middle():
    assert smoothed([3.0] * 50, 5) == pytest.approx([3.0] * 50)
    line = smoothed([float(i) for i in range(101)], 5)
    assert line[50] == pytest.approx(50.0)
    assert line == sorted(line)


def test_passes_over_nan():
    values = [1.0, math.nan, 1.0, math.nan, math.nan]
    assert smoothed(values, 3) == pytest.approx([1.0] * 5)
    assert all(math.isnan(x) for x in smoothed([math.nan] * 3, 2))


def test_noise_shrinks():
    noise = [(-1.0) ** i for i in range(200)]
    assert max(abs(x) for x in smoothed(noise, 10)[20:-20]) < 0.1


@pytest.mark.parametrize("length", [0, 1, 1199, 1200, 100_000])
def test_thinned(length):
    indices = thinned(length)
    assert len(indices) <= 2 * POINTS_SHOWN
    assert list(indices)[:1] == list(range(min(length, 1)))


def test_window():
    assert smoothing_window(3) == 1
    assert smoothing_window(200) == 10
