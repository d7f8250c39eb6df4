"""Structural violations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scalefold.chem.bounds import ATOM14_RADIUS_ANGSTROM
from scalefold.chem.residues import ATOM14, RESTYPE_INDEX
from scalefold.features.atoms import atom14_targets
from scalefold.loss.violation import (
    clash_sum,
    peptide_violations,
    violation_loss,
    within_residue_sum,
)
from scalefold.raw.mmcif import read_entry

DEMO = Path(__file__).parents[3] / "demo/mirror/wwpdb"


def _loss(features: dict[str, Tensor], positions: Tensor) -> Tensor:
    return violation_loss(
        positions, features["atom14_gt_exists"], features["residue_index"], features["aatype"]
    )


def _radius(aatype: Tensor) -> Tensor:
    return torch.from_numpy(ATOM14_RADIUS_ANGSTROM)[aatype]


@pytest.mark.parametrize("entry", ["1aki", "1ay7", "1mol", "3zee", "102m"])
def test_real_structures_have_no_violation(entry: str) -> None:
    chain = read_entry(next(DEMO.rglob(f"{entry}.cif.gz"))).chains[0]
    aatype = torch.from_numpy(chain.aatype).long()
    truth = atom14_targets(
        aatype, torch.from_numpy(chain.positions), torch.from_numpy(chain.atom_mask).float()
    )
    found = violation_loss(
        truth["atom14_gt_positions"].double()[None],
        truth["atom14_gt_exists"].double()[None],
        torch.arange(len(aatype))[None],
        aatype[None],
    )
    assert found.item() == 0.0


def test_the_one_squeezed_carboxylate_of_bpti_is_found(make_truth: Any) -> None:
    """OE1 and OE2 of Glu 49 are 1.840 Å apart in 5PTI, below the bound of 1.982 Å."""
    features = make_truth(0, 58)
    found = _loss(features, features["atom14_gt_positions"]).item()
    num_atoms = features["atom14_gt_exists"].sum().item()
    assert found == pytest.approx(4 * (1.98161 - 1.84013) / num_atoms, rel=1e-3)
    assert _loss(make_truth(0, 48), make_truth(0, 48)["atom14_gt_positions"]).item() == 0.0


def test_stretched_peptide_bond_counts_beyond_twelve_deviations(make_truth: Any) -> None:
    features = make_truth(0, 16)
    positions = features["atom14_gt_positions"].clone()
    c, n = positions[0, 4, 2], positions[0, 5, 0]
    along = (n - c) / (n - c).norm()
    positions[0, 5:] += along * (2.5 - (n - c).norm())
    found = peptide_violations(
        positions, features["atom14_gt_exists"], features["residue_index"], features["aatype"]
    )
    # 15 bonds; eps 1e-6 Å^2 under both roots shifts by less than 1e-6 Å
    expected = (2.5 - 1.329 - 12 * 0.014) / 15
    assert found.bond_c_n.item() == pytest.approx(expected, abs=1e-6)


def test_bond_to_proline_has_its_own_length(make_truth: Any) -> None:
    features = make_truth(0, 3)  # R P D
    assert features["aatype"][0, 1] == RESTYPE_INDEX["P"]
    positions = features["atom14_gt_positions"].clone()
    c, n = positions[0, 0, 2], positions[0, 1, 0]
    positions[0, 1:] += (n - c) / (n - c).norm() * (2.5 - (n - c).norm())
    found = peptide_violations(
        positions, features["atom14_gt_exists"], features["residue_index"], features["aatype"]
    )
    assert found.bond_c_n.item() == pytest.approx((2.5 - 1.341 - 12 * 0.016) / 2, abs=1e-6)


def test_the_tolerance_of_the_ca_c_n_angle_can_be_set(make_truth: Any) -> None:
    features = make_truth(0, 16)
    positions = features["atom14_gt_positions"].clone()
    n, c = positions[:, 1:, 0], positions[:, :-1, 2]
    positions[:, 1:, 0] = c + (n - c).flip(-1)  # any other direction
    given = positions, features["atom14_gt_exists"], features["residue_index"], features["aatype"]
    wide, narrow = peptide_violations(*given), peptide_violations(*given, 0.014)
    counted = (narrow.angle_ca_c_n - wide.angle_ca_c_n).item()
    assert 0 < counted <= 12 * (0.0311 - 0.014) + 1e-6
    assert narrow.angle_c_n_ca == wide.angle_c_n_ca


@pytest.mark.parametrize("absent", [None, 0, 1])
def test_angles_are_measured_by_their_cosine_where_their_atoms_are(absent: int | None) -> None:
    """``absent`` is the residue without an alpha carbon: its angle does not count."""
    # CA, C, N, CA in a straight line: both cosines are -1
    positions = torch.zeros(1, 2, 14, 3, dtype=torch.float64)
    positions[0, 0, 1, 0], positions[0, 0, 2, 0] = 0.0, 1.53
    positions[0, 1, 0, 0], positions[0, 1, 1, 0] = 1.53 + 1.329, 1.53 + 1.329 + 1.46
    exists = torch.zeros(1, 2, 14, dtype=torch.float64)
    exists[:, :, :3] = 1.0
    if absent is not None:
        exists[0, absent, 1] = 0.0
    found = peptide_violations(positions, exists, torch.tensor([[0, 1]]), torch.tensor([[0, 0]]))
    assert found.bond_c_n.item() == 0.0
    expected = [1 - 0.4473 - 12 * 0.0311, 1 - 0.5203 - 12 * 0.0353]
    if absent is not None:
        expected[absent] = 0.0
    assert found.angle_ca_c_n.item() == pytest.approx(expected[0], abs=3e-6)
    assert found.angle_c_n_ca.item() == pytest.approx(expected[1], abs=3e-6)


def test_gap_in_the_index_is_no_bond(make_truth: Any) -> None:
    features = make_truth(0, 8)
    positions = features["atom14_gt_positions"].clone()
    positions[0, 4:] += 50.0
    index = features["residue_index"].clone()
    given = (features["atom14_gt_exists"], index, features["aatype"])
    assert peptide_violations(positions, *given).bond_c_n.item() > 1.0
    index[0, 4:] += 3
    assert violation_loss(positions, *given).item() == 0.0


def _two_atoms(first: str, first_atom: str, second: str, second_atom: str, distance: float,
               index: tuple[int, int] = (0, 5)) -> float:  # fmt: skip
    aatype = torch.tensor([[RESTYPE_INDEX[first], RESTYPE_INDEX[second]]])
    j = ATOM14[aatype[0, 0]].index(first_atom)
    k = ATOM14[aatype[0, 1]].index(second_atom)
    exists = torch.zeros(1, 2, 14, dtype=torch.float64)
    exists[0, 0, j] = exists[0, 1, k] = 1.0
    positions = torch.zeros(1, 2, 14, 3, dtype=torch.float64)
    positions[0, 1, k, 2] = distance
    return clash_sum(positions, exists, torch.tensor([index]), _radius(aatype)).item()


def test_clash_is_the_overlap_beyond_the_tolerance_counted_for_both_atoms() -> None:
    assert _two_atoms("A", "CB", "S", "OG", 1.0) == pytest.approx(2 * (1.7 + 1.52 - 1.5 - 1.0))
    assert _two_atoms("A", "CB", "S", "OG", 1.73) == 0.0
    assert _two_atoms("M", "SD", "K", "NZ", 1.0) == pytest.approx(2 * (1.8 + 1.55 - 1.5 - 1.0))


def test_bonds_between_residues_are_no_clash() -> None:
    assert _two_atoms("A", "C", "G", "N", 1.33, index=(4, 5)) == 0.0
    assert _two_atoms("A", "C", "G", "N", 1.33, index=(4, 6)) > 0.0
    assert _two_atoms("G", "N", "A", "C", 1.33, index=(4, 5)) > 0.0
    assert _two_atoms("C", "SG", "C", "SG", 2.03) == 0.0


def test_atoms_of_one_residue_do_not_clash_by_radius() -> None:
    assert _two_atoms("A", "CB", "S", "OG", 0.5, index=(3, 3)) == 0.0


def test_distance_inside_a_residue_is_held_from_both_sides() -> None:
    aatype = torch.tensor([[RESTYPE_INDEX["A"]]])
    exists = torch.zeros(1, 1, 14, dtype=torch.float64)
    exists[0, 0, [0, 1]] = 1.0  # N, CA: 1.459 +- 12 x 0.020
    index = torch.tensor([[0]])
    for distance, excess in ((1.459, 0.0), (1.0, 0.219), (2.0, 0.301)):
        positions = torch.zeros(1, 1, 14, 3, dtype=torch.float64)
        positions[0, 0, 1, 1] = distance
        found = violation_loss(positions, exists, index, aatype).item()
        # two atoms, each counted twice; bounds are float32
        assert found == pytest.approx(4 * excess / 2, abs=1e-6)


def test_sum_inside_residues_counts_each_pair_four_times() -> None:
    positions = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    positions[0, 0, 1, 0] = 2.0
    exists = torch.tensor([[[1.0, 1.0, 0.0]]], dtype=torch.float64)
    bound = torch.full((1, 1, 3, 3), 1.5, dtype=torch.float64)
    found = within_residue_sum(positions, exists, bound - 1.0, bound)
    assert found.item() == pytest.approx(4 * 0.5, abs=1e-9)


def test_atoms_that_the_residue_lacks_do_not_count(make_truth: Any) -> None:
    features = make_truth(0, 16)
    positions = features["atom14_gt_positions"].clone()
    missing = features["atom14_gt_exists"] == 0
    positions[missing] = 7.0
    assert _loss(features, positions).item() == 0.0


def test_gradients() -> None:
    generator = torch.manual_seed(3)
    positions = 2.0 * torch.randn(1, 3, 14, 3, dtype=torch.float64, generator=generator)
    aatype = torch.tensor([[RESTYPE_INDEX[x] for x in "GPC"]])
    exists = torch.tensor([[[float(j < len(ATOM14[a])) for j in range(14)] for a in aatype[0]]])
    index = torch.tensor([[0, 1, 3]])
    assert torch.autograd.gradcheck(
        lambda x: violation_loss(x, exists.double(), index, aatype),
        positions.requires_grad_(),
    )
