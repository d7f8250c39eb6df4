import numpy as np
import pytest
import torch
from Bio.PDB.vectors import Vector, calc_dihedral

from scalefold.chem.residues import ATOM37, ATOM37_INDEX, CHI_ATOMS, CHI_MASK
from scalefold.features.torsions import torsion_angles


@pytest.fixture(scope="module")
def torsions(tensors):
    return torsion_angles(*tensors)


def dihedral(chain, *atoms):
    points = [chain.positions[n, ATOM37_INDEX[a]].astype(np.float64) for n, a in atoms]
    return calc_dihedral(*(Vector(p) for p in points))


def test_angles_are_biopythons(bpti, torsions):
    """Dihedrals by another code. Psi here is measured at O, half a turn from N of the next."""
    expected = np.full((len(bpti), 7), np.nan)
    for n in range(len(bpti)):
        if n:
            expected[n, 0] = dihedral(bpti, (n - 1, "CA"), (n - 1, "C"), (n, "N"), (n, "CA"))
            expected[n, 1] = dihedral(bpti, (n - 1, "C"), (n, "N"), (n, "CA"), (n, "C"))
        expected[n, 2] = dihedral(bpti, (n, "N"), (n, "CA"), (n, "C"), (n, "O")) + np.pi
        for chi in range(int(CHI_MASK[bpti.aatype[n]].sum())):
            names = [ATOM37[a] for a in CHI_ATOMS[bpti.aatype[n], chi]]
            expected[n, 3 + chi] = dihedral(bpti, *((n, name) for name in names))
    defined = ~np.isnan(expected)
    np.testing.assert_array_equal(torsions.mask.numpy() == 1, defined)
    found = torsions.sin_cos.numpy()[defined]
    # 1e-8 Å^2 in the norm, at least 0.5 Å: 2e-8; the rest is float32 rounding
    np.testing.assert_allclose(found[:, 0], np.sin(expected[defined]), atol=3e-7)
    np.testing.assert_allclose(found[:, 1], np.cos(expected[defined]), atol=3e-7)


def test_alternative_is_half_a_turn_away_where_periodic(bpti, torsions):
    letters = np.asarray(list(bpti.sequence))
    periodic = np.zeros((len(bpti), 7), bool)
    for letter, chi in (("D", 1), ("E", 2), ("F", 1), ("Y", 1)):
        periodic[letters == letter, 3 + chi] = True
    assert periodic.any()
    same, other = torsions.sin_cos.numpy(), torsions.alternative_sin_cos.numpy()
    np.testing.assert_array_equal(other[periodic], -same[periodic])
    np.testing.assert_array_equal(other[~periodic], same[~periodic])


def test_rotation_and_translation_leave_torsions(tensors, torsions):
    aatype, positions, mask = tensors
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))[0]
    rotation = rotation * torch.linalg.det(rotation).sign()
    moved = torsion_angles(aatype, positions @ rotation.T + torch.tensor([9.0, -8.0, 7.0]), mask)
    defined = torsions.mask == 1
    # float32 rounding of the moved positions, 4e-6 Å, at least 0.5 Å from the axis
    torch.testing.assert_close(moved.sin_cos[defined], torsions.sin_cos[defined], atol=5e-5, rtol=0)
    assert torch.equal(moved.mask, torsions.mask)


def test_mirror_image_changes_signs(tensors, torsions):
    aatype, positions, mask = tensors
    mirrored = torsion_angles(aatype, positions * torch.tensor([1.0, 1.0, -1.0]), mask)
    defined = torsions.mask == 1
    expected = torsions.sin_cos[defined] * torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(mirrored.sin_cos[defined], expected, atol=1e-6, rtol=0)


def test_missing_atoms_mask_exactly_their_angles(tensors, torsions):
    aatype, positions, mask = tensors
    mask = mask.clone()
    mask[9, ATOM37_INDEX["C"]] = 0
    found = torsion_angles(aatype, positions, mask).mask
    lost = (torsions.mask - found).nonzero().tolist()
    assert lost == [[9, 1], [9, 2], [10, 0], [10, 1]]


def test_leading_dimensions_and_gaps(tensors, torsions):
    aatype, positions, mask = tensors
    gaps = torch.full_like(aatype, 21)
    both = torsion_angles(
        torch.stack([aatype, gaps]), positions.expand(2, -1, -1, -1), torch.stack([mask, mask * 0])
    )
    assert torch.equal(both.sin_cos[0], torsions.sin_cos)
    assert both.mask[1].sum() == 0


def test_absent_atoms_give_finite_numbers():
    empty = torsion_angles(torch.zeros(3).long(), torch.zeros(3, 37, 3), torch.zeros(3, 37))
    assert (empty.sin_cos == 0).all()
