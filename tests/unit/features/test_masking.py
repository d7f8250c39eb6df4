import numpy as np
import pytest
import torch

from scalefold.chem.residues import GAP, MASK
from scalefold.config.schema import MaskedMsaConfig
from scalefold.features.masking import mask_msa, replacement_probabilities
from scalefold.features.random import unit_float_pairs, words

ROWS, COLUMNS = 400, 250
CONFIG = MaskedMsaConfig()


@pytest.fixture(scope="module")
def masked():
    """All symbols are Ala; the profile is half Trp, half gap."""
    symbols = torch.zeros(ROWS, COLUMNS, dtype=torch.uint8)
    profile = torch.zeros(COLUMNS, 22)
    profile[:, 17], profile[:, GAP] = 0.5, 0.5
    position, symbol = unit_float_pairs(words(ROWS * COLUMNS, "test masking"))
    new, chosen = mask_msa(
        symbols,
        profile,
        torch.from_numpy(position).view(ROWS, COLUMNS),
        torch.from_numpy(symbol).view(ROWS, COLUMNS),
        CONFIG,
    )
    return new, chosen


def within(count, total, probability):
    return abs(count - total * probability) < 4.5 * np.sqrt(total * probability * (1 - probability))


def test_fifteen_percent_are_chosen(masked):
    assert within(int(masked[1].sum()), ROWS * COLUMNS, 0.15)


def test_the_rest_is_untouched(masked):
    new, chosen = masked
    assert (new[~chosen] == 0).all()


def test_replacements_have_the_stated_shares(masked):
    new, chosen = masked
    counts = np.bincount(new[chosen], minlength=23)
    total = counts.sum()
    expected = np.full(23, 0.1 / 20)  # uniform over amino acids
    expected[20] = expected[GAP] = 0
    expected[17] += 0.05  # profile
    expected[GAP] += 0.05
    expected[0] += 0.1  # same
    expected[MASK] = 0.7
    assert counts[20] == 0
    for symbol in np.flatnonzero(expected):
        assert within(counts[symbol], total, expected[symbol]), symbol


def test_probabilities_sum_to_one():
    symbols = torch.tensor([[3, 20, 21]])
    profile = torch.full((3, 22), 1 / 22)
    probabilities = replacement_probabilities(symbols, profile, CONFIG)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(1, 3))
    assert probabilities.shape == (1, 3, 23)


def test_extreme_draws_stay_in_the_alphabet():
    symbols = torch.zeros(1, 2, dtype=torch.uint8)
    profile = torch.full((2, 22), 1 / 22)
    largest = 1 - 2.0**-24
    new, chosen = mask_msa(
        symbols, profile, torch.zeros(1, 2), torch.tensor([[0.0, largest]]), CONFIG
    )
    assert chosen.all()
    assert new.tolist() == [[0, MASK]]


def test_no_masking_at_rate_zero():
    symbols = torch.randint(0, 22, (4, 5), dtype=torch.uint8)
    config = MaskedMsaConfig(replace_fraction=0.0)
    new, chosen = mask_msa(
        symbols, torch.full((5, 22), 1 / 22), torch.zeros(4, 5), torch.zeros(4, 5), config
    )
    assert torch.equal(new, symbols)
    assert not chosen.any()
