import numpy as np
import pytest

from scalefold.features.crop import Crop, random_crop
from scalefold.features.random import unit_floats, words


def starts(draw, clamped, length=12, size=8, count=20_000):
    shift = unit_floats(words(count, "shift"))
    start = unit_floats(words(count, "start"))
    windows = [
        random_crop(length, size, draw=draw, clamped=clamped, shift=a, start=b)
        for a, b in zip(shift.tolist(), start.tolist())
    ]
    assert {w.size for w in windows} == {size}
    return np.bincount([w.start for w in windows], minlength=length - size + 1) / count


@pytest.mark.parametrize(
    ("draw", "clamped"), [("uniform", True), ("uniform", False), ("alphafold", True)]
)
def test_uniform_starts(draw, clamped):
    found = starts(draw, clamped)
    np.testing.assert_allclose(found, 0.2, atol=4.5 * np.sqrt(0.2 * 0.8 / 20_000))


def test_unclamped_samples_prefer_the_n_terminus():
    """x ~ U{0..n}, start ~ U{0..n - x}, n = 4: P(start) = sum over x <= n - start of 1/5/(5-x)."""
    expected = [sum(1 / 5 / (5 - x) for x in range(5 - s)) for s in range(5)]
    assert sum(expected) == pytest.approx(1)
    found = starts("alphafold", False)
    np.testing.assert_allclose(found, expected, atol=4.5 * np.sqrt(0.25 / 20_000))


@pytest.mark.parametrize("length", [1, 7, 8])
def test_short_chains_are_taken_whole(length):
    window = random_crop(length, 8, draw="alphafold", clamped=False, shift=0.999, start=0.999)
    assert window == Crop(0, length)
