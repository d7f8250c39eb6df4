"""Counts of broken peptide bonds and of clashes."""

import itertools

import pytest

from scalefold.chem.residues import ATOM37
from scalefold.evaluate.metrics import Comparison, stereochemistry

RADIUS = {"C": 1.7, "N": 1.55, "O": 1.52, "S": 1.8}


def moved(comparison: Comparison, residue: int, angstrom: float) -> Comparison:
    predicted = comparison.predicted.clone()
    predicted[residue] += angstrom
    return Comparison(
        predicted, comparison.predicted_mask, comparison.true, comparison.true_mask,
        comparison.aatype,
    )  # fmt: skip


@pytest.mark.parametrize("chain_key", ["5pti_A", "1lcd_A"])
def test_an_experiment_has_no_broken_bond(compare, chain_key):
    found = stereochemistry(compare(chain_key, "noise:0"))
    assert found.broken_bonds == 0
    assert found.peptide_bonds == len(compare(chain_key, "noise:0")) - 1


def test_a_residue_moved_away_breaks_its_two_bonds(compare):
    found = stereochemistry(moved(compare("5pti_A", "noise:0"), 20, 3.0))
    assert found.broken_bonds == 2


@pytest.mark.parametrize("recipe", ["noise:0", "noise:0.9", "hinge:2.5"])
def test_clashes_are_those_found_pair_by_pair(compare, recipe):
    comparison = compare("5pti_A", recipe)
    atoms = [
        (residue, ATOM37[slot], comparison.predicted[residue, slot].tolist())
        for residue, slot in comparison.predicted_mask.nonzero().tolist()
    ]
    expected = 0
    for (i, one, x), (j, other, y) in itertools.combinations(atoms, 2):
        if i == j or (j - i == 1 and (one, other) == ("C", "N")) or one == other == "SG":
            continue
        distance = sum((a - b) ** 2 for a, b in zip(x, y)) ** 0.5
        expected += distance < RADIUS[one[0]] + RADIUS[other[0]] - 1.5
    assert stereochemistry(comparison).clashes == expected
    assert (expected > 0) == (recipe != "noise:0")


def test_a_chain_without_neighbours_has_no_bonds(compare):
    whole = compare("5pti_A", "noise:0")
    one = Comparison(
        whole.predicted[:1], whole.predicted_mask[:1], whole.true[:1], whole.true_mask[:1],
        whole.aatype[:1],
    )  # fmt: skip
    assert tuple(stereochemistry(one)) == (0, 0, 0)
