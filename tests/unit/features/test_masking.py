import numpy as np
import pytest
import torch

from scalefold.chem.residues import GAP, MASK
from scalefold.config.schema import MaskedMsaConfig
from scalefold.features.masking import mask_msa, replacement_bounds
from scalefold.features.random import unit_float_pairs, words

ROWS, COLUMNS = 400, 250
CONFIG = MaskedMsaConfig()


def bounds(profile):
    return torch.from_numpy(replacement_bounds(profile, CONFIG))


@pytest.fixture(scope="module")
def masked():
    """All symbols are Ala; the profile is half Trp, half gap."""
    symbols = torch.zeros(ROWS, COLUMNS, dtype=torch.uint8)
    profile = np.zeros((COLUMNS, 22), np.float32)
    profile[:, 17], profile[:, GAP] = 0.5, 0.5
    position, symbol = unit_float_pairs(words(ROWS * COLUMNS, "test masking"))
    new, chosen = mask_msa(
        symbols,
        bounds(profile),
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


def test_bounds_rise_to_all_but_same_and_mask():
    found = bounds(np.full((3, 22), 1 / 22, np.float32))
    assert found.shape == (3, 22)
    assert (found.diff(dim=-1) > 0).all()
    torch.testing.assert_close(found[:, -1], torch.full((3,), 0.2))


def test_every_draw_gives_the_symbol_of_its_interval():
    """Against the distribution of each position, summed in float64."""
    generator = np.random.default_rng(0)
    profile = generator.dirichlet(np.full(22, 0.2), 5).astype(np.float32)
    profile[:, 3] = 0  # cannot be drawn from the profile
    symbols = generator.integers(0, 22, (40, 5)).astype(np.uint8)
    draw = generator.integers(0, 2**24, (40, 5)) * 2.0**-24
    new, _ = mask_msa(
        torch.from_numpy(symbols),
        bounds(profile),
        torch.zeros(40, 5),
        torch.from_numpy(draw.astype(np.float32)),
        CONFIG,
    )
    for row, column in np.ndindex(40, 5):
        probability = 0.1 * profile[column].astype(np.float64)
        probability[:20] += 0.1 / 20
        probability[symbols[row, column]] += 0.1
        upper = np.cumsum(probability)
        distance = np.abs(upper - draw[row, column]).min()
        expected = min(np.searchsorted(upper, draw[row, column], side="right"), MASK)
        assert new[row, column] == expected or distance < 1e-6


def test_extreme_draws_stay_in_the_alphabet():
    symbols = torch.zeros(1, 2, dtype=torch.uint8)
    flat = bounds(np.full((2, 22), 1 / 22, np.float32))
    largest = 1 - 2.0**-24
    new, chosen = mask_msa(symbols, flat, torch.zeros(1, 2), torch.tensor([[0.0, largest]]), CONFIG)
    assert chosen.all()
    assert new.tolist() == [[0, MASK]]


def test_no_masking_at_rate_zero():
    symbols = torch.randint(0, 22, (4, 5), dtype=torch.uint8)
    config = MaskedMsaConfig(replace_fraction=0.0)
    flat = bounds(np.full((5, 22), 1 / 22, np.float32))
    new, chosen = mask_msa(symbols, flat, torch.zeros(4, 5), torch.zeros(4, 5), config)
    assert torch.equal(new, symbols)
    assert not chosen.any()
