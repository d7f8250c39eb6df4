from __future__ import annotations

import dataclasses
import math

import biotite.structure as struc
import numpy as np
import pytest
import torch

from scalefold.chem.residues import ATOM37, CA, CB
from scalefold.evaluate.metrics import Comparison, lddt_all_atom, lddt_ca

CHAINS = ["5pti_A", "3u8v_A", "3jqh_A", "102m_A", "4cup_A"]
RECIPES = ["noise:0.6", "noise:3", "drift:2", "hinge:0.7", "shift"]


def biotite_atoms(comparison: Comparison, slots: list[int]) -> tuple[struc.AtomArray, np.ndarray]:
    """The true structure as biotite's array, and the predicted coordinates of the same atoms."""
    mask = comparison.true_mask[:, slots].numpy()
    residue, slot = mask.nonzero()
    atoms = struc.AtomArray(len(residue))
    atoms.coord = comparison.true[:, slots].numpy()[mask]
    atoms.res_id = residue + 1
    atoms.chain_id[:] = "A"
    atoms.atom_name = np.array([ATOM37[slots[s]] for s in slot])
    predicted = comparison.predicted[:, slots].numpy()[mask].astype(np.float32)
    predicted[~comparison.predicted_mask[:, slots].numpy()[mask]] = np.nan
    return atoms, predicted


def tolerance(reference: np.ndarray, predicted: np.ndarray) -> float:
    """1e-6, and a quarter of a pair for each that float32 cannot tell to be kept or not.

    biotite's distances are float32: at coordinates of 100 Å and more they are good to 1e-5 Å.
    """
    first, second = np.triu_indices(len(reference), 1)
    true = np.linalg.norm(reference[first] - reference[second], axis=-1).astype(np.float64)
    first, second, true = (x[true < 15.0] for x in (first, second, true))
    error = np.abs(np.linalg.norm(predicted[first] - predicted[second], axis=-1) - true)
    unsure = sum(np.count_nonzero(np.abs(error - t) < 1e-5) for t in (0.5, 1.0, 2.0, 4.0))
    assert unsure < 1e-4 * len(true) or unsure <= 1
    return 1e-6 + 0.25 * unsure / len(true)


@pytest.mark.parametrize("chain_key", CHAINS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("metric", "slots"), [(lddt_ca, [CA]), (lddt_all_atom, list(range(37)))])
def test_agrees_with_biotite(compare, chain_key, recipe, metric, slots):
    comparison = compare(chain_key, recipe)
    atoms, predicted = biotite_atoms(comparison, slots)
    ours = metric(comparison)
    expected = struc.lddt(atoms, predicted)
    assert ours.score == pytest.approx(expected, abs=tolerance(atoms.coord, predicted))
    observed = comparison.true_mask[:, slots].any(-1)
    np.testing.assert_allclose(
        ours.per_residue[observed], struc.lddt(atoms, predicted, aggregation="residue"), atol=2e-3
    )
    assert ours.per_residue[~observed].isnan().all()


def test_atoms_that_are_not_predicted_keep_no_distance_as_in_biotite(compare):
    comparison = compare("1a8o_A", "noise:0.5")
    predicted_mask = comparison.predicted_mask.clone()
    predicted_mask[20:30] = False
    # Nor where the atoms are by chance in the place of what is not predicted, which is the origin.
    origin = comparison.true[25, CA]
    comparison = dataclasses.replace(
        comparison,
        predicted=comparison.predicted - origin,
        predicted_mask=predicted_mask,
        true=comparison.true - origin,
    )
    for metric, slots in ((lddt_ca, [CA]), (lddt_all_atom, list(range(37)))):
        atoms, predicted = biotite_atoms(comparison, slots)
        ours = metric(comparison)
        assert ours.score == pytest.approx(struc.lddt(atoms, predicted), abs=1e-6)
        assert (ours.per_residue[20:30] == 0).all()


@pytest.mark.parametrize("metric", [lddt_ca, lddt_all_atom])
def test_a_perfect_prediction_scores_one_wherever_it_lies(compare, metric):
    comparison = compare("2ofg_X", "noise:0")
    turn = torch.linalg.qr(torch.arange(9.0, dtype=torch.float64).view(3, 3).sin()).Q
    moved = dataclasses.replace(comparison, predicted=comparison.true @ turn.T + 30.0)
    assert metric(moved).score == 1.0


@pytest.mark.parametrize("metric", [lddt_ca, lddt_all_atom])
def test_a_mirror_image_scores_one(compare, metric):
    comparison = compare("2ofg_X", "noise:0")
    mirrored = dataclasses.replace(
        comparison, predicted=comparison.true * torch.tensor([1, 1, -1], dtype=torch.float64)
    )
    assert metric(mirrored).score == 1.0


def test_by_hand():
    # Four C-alphas on a line at 0, 10, 20, 40 Å: pairs (0,1) and (1,2) are within 15 Å. The
    # prediction moves the third by 1.5 Å: its distance is kept to within 2 and 4 Å only.
    true = torch.zeros(4, 37, 3)
    true[:, CA, 0] = torch.tensor([0.0, 10.0, 20.0, 40.0])
    mask = torch.zeros(4, 37)
    mask[:, CA] = 1
    predicted = true.clone()
    predicted[2, CA, 0] += 1.5
    result = lddt_ca(Comparison(predicted, mask, true, mask, torch.zeros(4)))
    assert result.score == 0.75
    assert result.per_residue[:3].tolist() == [1.0, 0.75, 0.5]
    assert math.isnan(result.per_residue[3])


def test_other_atoms_do_not_matter_to_the_c_alpha_score(compare):
    comparison = compare("5pti_A", "noise:1")
    predicted = comparison.predicted.clone()
    predicted[:, CB:] += 50.0
    assert lddt_ca(dataclasses.replace(comparison, predicted=predicted)).score == (
        lddt_ca(comparison).score
    )


def test_nothing_observed_has_no_score():
    empty = Comparison(
        torch.zeros(5, 37, 3),
        torch.ones(5, 37),
        torch.zeros(5, 37, 3),
        torch.zeros(5, 37),
        torch.zeros(5),
    )
    for metric in (lddt_ca, lddt_all_atom):
        assert math.isnan(metric(empty).score)
        assert metric(empty).per_residue.isnan().all()
