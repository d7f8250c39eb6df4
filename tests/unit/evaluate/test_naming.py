from __future__ import annotations

import dataclasses

import pytest
import torch

from scalefold.chem.residues import ATOM37_INDEX, RESTYPE_NAMES
from scalefold.evaluate.metrics import lddt_all_atom, lddt_ca, with_best_naming

SWAPS = {
    "ASP": [("OD1", "OD2")],
    "GLU": [("OE1", "OE2")],
    "PHE": [("CD1", "CD2"), ("CE1", "CE2")],
    "TYR": [("CD1", "CD2"), ("CE1", "CE2")],
}


def swapped(points: torch.Tensor, aatype: torch.Tensor, every: int) -> torch.Tensor:
    points = points.clone()
    for name, pairs in SWAPS.items():
        for residue in (aatype == RESTYPE_NAMES.index(name)).nonzero()[::every, 0]:
            for first, second in pairs:
                i, j = ATOM37_INDEX[first], ATOM37_INDEX[second]
                points[residue, [i, j]] = points[residue, [j, i]]
    return points


@pytest.mark.parametrize("every", [1, 2])
def test_exchanged_names_of_symmetric_side_chains_do_not_count(compare, every):
    comparison = compare("1aki_A", "noise:0")
    exchanged = dataclasses.replace(
        comparison, predicted=swapped(comparison.true, comparison.aatype, every)
    )
    assert lddt_all_atom(exchanged).score < 0.999
    assert lddt_all_atom(with_best_naming(exchanged)).score == 1.0


def test_the_deposited_naming_stays_where_it_is_as_good(compare):
    comparison = compare("1aki_A", "noise:0")
    assert torch.equal(with_best_naming(comparison).true, comparison.true)
    far = dataclasses.replace(comparison, predicted=comparison.predicted * 10)
    assert torch.equal(with_best_naming(far).true, comparison.true)


@pytest.mark.parametrize("recipe", ["noise:1.5", "drift:3"])
def test_never_lowers_the_agreement_and_leaves_the_backbone(compare, recipe):
    comparison = compare("102m_A", recipe)
    better = with_best_naming(comparison)
    assert lddt_all_atom(better).score >= lddt_all_atom(comparison).score
    assert lddt_ca(better).score == lddt_ca(comparison).score
    assert torch.equal(better.true_mask.sum(-1), comparison.true_mask.sum(-1))
