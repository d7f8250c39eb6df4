import numpy as np
import pytest
import torch

from scalefold.errors import InputError
from scalefold.features.crop import Crop, random_crop
from scalefold.features.padding import pad
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


def test_padding_follows_the_contract():
    features = {
        "aatype": torch.arange(2, 7),
        "all_atom_positions": torch.rand(5, 37, 3),
        "msa_feat": torch.rand(3, 5, 49),
        "template_mask": torch.ones(2),
        "resolution": torch.tensor(2.0),
    }
    padded = pad(features, {"N": 8, "S": 4, "T": 3})
    assert padded["aatype"].tolist() == [2, 3, 4, 5, 6, 0, 0, 0]
    assert padded["all_atom_positions"].shape == (8, 37, 3)
    assert torch.equal(padded["msa_feat"][:3, :5], features["msa_feat"])
    assert padded["msa_feat"][3:].abs().sum() == 0
    assert padded["msa_feat"][:, 5:].abs().sum() == 0
    assert padded["template_mask"].tolist() == [1, 1, 0]
    assert padded["resolution"].item() == 2.0


def test_what_is_too_large_is_an_error():
    with pytest.raises(InputError, match=r"'aatype' .*10 .*8"):
        pad({"aatype": torch.arange(10)}, {"N": 8})
