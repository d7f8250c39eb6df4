"""Residues built from the rigid groups, against stereochemistry and real structures."""

from __future__ import annotations

import math
from pathlib import Path

import biotite.structure
import biotite.structure.info
import numpy as np
import pytest
import torch
from torch import Tensor

from scalefold.chem.residues import (
    ATOM14,
    ATOM14_LOCAL_POSITION,
    ATOM14_RIGID_GROUP,
    ATOM37,
    CHI_ATOMS,
    CHI_MASK,
    RESTYPE_NAMES,
    RESTYPES,
)
from scalefold.chem.rigid_groups import (
    DEFAULT_FRAMES,
    GROUP_ATOMS,
    GROUP_IS_AMBIGUOUS,
    GROUP_MASK,
    NUM_GROUPS,
)
from scalefold.chem.stereochemistry import BOND_ANGLES, BONDS
from scalefold.geometry.rigid import Rigid
from scalefold.raw.mmcif import Chain, read_entry

DEMO = Path(__file__).parents[3] / "demo/mirror/wwpdb"
TYPES = pytest.mark.parametrize("restype", range(20), ids=RESTYPE_NAMES)


def _build(restype: int, torsions: Tensor) -> Tensor:
    """Atoms (14, 3) of one residue in its backbone frame; torsions (7,) from omega to chi4."""
    frames = torch.from_numpy(DEFAULT_FRAMES[restype]).double()
    turn = torch.eye(4, dtype=torch.float64).repeat(NUM_GROUPS, 1, 1)
    sine, cosine = torsions.sin(), torsions.cos()
    turn[1:, 1, 1], turn[1:, 1, 2], turn[1:, 2, 1], turn[1:, 2, 2] = cosine, -sine, sine, cosine
    groups = list(frames @ turn)
    for chi in range(5, NUM_GROUPS):
        groups[chi] = groups[chi - 1] @ groups[chi]
    of_atom = torch.stack([groups[g] for g in ATOM14_RIGID_GROUP[restype]])
    local = torch.from_numpy(ATOM14_LOCAL_POSITION[restype]).double()
    return Rigid.from_4x4(of_atom).apply(local)


def _named(restype: int, atoms: Tensor) -> dict[str, np.ndarray]:
    return dict(zip(ATOM14[restype], atoms.numpy(), strict=False))


def _random_torsions(restype: int) -> Tensor:
    generator = torch.Generator().manual_seed(restype)
    return 2 * math.pi * torch.rand(7, generator=generator, dtype=torch.float64)


@TYPES
def test_default_frames_are_rigid(restype: int) -> None:
    exists = np.flatnonzero(np.concatenate([np.ones(4), CHI_MASK[restype]]))
    rotation = DEFAULT_FRAMES[restype, exists, :3, :3].astype(np.float64)
    # float32 entries
    unit = np.broadcast_to(np.eye(3), rotation.shape)
    np.testing.assert_allclose(rotation @ rotation.transpose(0, 2, 1), unit, atol=1e-6)
    np.testing.assert_allclose(np.linalg.det(rotation), 1.0, atol=1e-6)
    missing = np.setdiff1d(np.arange(8), exists)
    assert not DEFAULT_FRAMES[restype, missing].any()


@TYPES
def test_bonds_and_angles_are_ideal_at_any_torsion(restype: int) -> None:
    at = _named(restype, _build(restype, _random_torsions(restype)))
    # Proline's ring closes only at its own torsions.
    closing = {"N", "CD"} if RESTYPES[restype] == "P" else set()
    checked = 0
    for bond in BONDS[RESTYPE_NAMES[restype]]:
        if {bond.first, bond.second} == closing:
            continue
        length = np.linalg.norm(at[bond.first] - at[bond.second])
        assert length == pytest.approx(bond.length_angstrom, abs=3 * bond.stddev_angstrom), bond
        checked += 1
    assert checked == len(BONDS[RESTYPE_NAMES[restype]]) - bool(closing)
    for angle in BOND_ANGLES[RESTYPE_NAMES[restype]]:
        if closing <= {angle.first, angle.middle, angle.last} and closing:
            continue
        found = np.degrees(
            biotite.structure.angle(at[angle.first], at[angle.middle], at[angle.last])
        )
        assert found == pytest.approx(angle.angle_degree, abs=4 * angle.stddev_degree), angle


@TYPES
def test_measured_chi_angles_are_those_put_in(restype: int) -> None:
    torsions = _random_torsions(restype)
    at = _named(restype, _build(restype, torsions))
    for chi in range(int(CHI_MASK[restype].sum())):
        points = [at[ATOM37[a]] for a in CHI_ATOMS[restype, chi]]
        turn = biotite.structure.dihedral(*points) - torsions[3 + chi].item()
        # local positions have three decimals
        assert math.cos(turn) == pytest.approx(1.0, abs=1e-5)


def _handedness(at: dict[str, np.ndarray], centre: str, *others: str) -> float:
    a, b, c = (at[name] - at[centre] for name in others)
    return float(np.sign(np.dot(a, np.cross(b, c))))


@TYPES
def test_handedness_is_that_of_natural_amino_acids(restype: int) -> None:
    component = biotite.structure.info.residue(RESTYPE_NAMES[restype])
    ideal = dict(zip(component.atom_name.tolist(), component.coord, strict=True))
    at = _named(restype, _build(restype, _random_torsions(restype)))
    centres = [("CA", "N", "C", "CB")] if RESTYPES[restype] != "G" else []
    centres += {"I": [("CB", "CA", "CG1", "CG2")], "T": [("CB", "CA", "OG1", "CG2")]}.get(
        RESTYPES[restype], []
    )
    for centre in centres:
        assert _handedness(at, *centre) == _handedness(ideal, *centre) != 0.0
    # of both methyl groups of valine and leucine the names tell which is which
    prochiral = {"V": ("CB", "CA", "CG1", "CG2"), "L": ("CG", "CB", "CD1", "CD2")}
    if RESTYPES[restype] in prochiral:
        centre = prochiral[RESTYPES[restype]]
        assert _handedness(at, *centre) == _handedness(ideal, *centre)


def _torsions_of(chain: Chain, residue: int) -> Tensor | None:
    """Torsions that place the atoms of a residue, or nothing if an atom is unobserved."""
    restype = int(chain.aatype[residue])
    if not chain.atom_mask[residue, [ATOM37.index(a) for a in ATOM14[restype]]].all():
        return None
    at = {name: chain.positions[residue, i].astype(np.float64) for i, name in enumerate(ATOM37)}
    torsions = torch.zeros(7, dtype=torch.float64)
    # psi is that of the next N, opposite to O
    torsions[2] = math.pi + float(biotite.structure.dihedral(at["N"], at["CA"], at["C"], at["O"]))
    for chi in range(int(CHI_MASK[restype].sum())):
        names = [ATOM37[a] for a in CHI_ATOMS[restype, chi]]
        torsions[3 + chi] = float(biotite.structure.dihedral(*(at[n] for n in names)))
    return torsions


@pytest.mark.parametrize("entry", ["102m", "3o5r"])
def test_real_residues_are_rebuilt_from_backbone_and_torsions(entry: str) -> None:
    """The only errors left are those of bond lengths and angles.

    Bond angles of well-refined structures (1.8 Å and better) spread by some 3 degrees, which moves
    the next atom by 0.08 Å and each later one by 0.07 Å more; lengths by 0.02 Å. Errors of the n
    bonds between C-alpha and an atom are independent. One deviation is allowed on average, five for
    an atom.
    """
    chain = read_entry(next(DEMO.rglob(f"{entry}.cif.gz"))).chains[0]
    squared: dict[int, list[float]] = {n: [] for n in range(8)}
    for residue, restype in enumerate(chain.aatype.tolist()):
        torsions = _torsions_of(chain, residue)
        if torsions is None:
            continue
        slots = [ATOM37.index(a) for a in ATOM14[restype]]
        real = torch.from_numpy(chain.positions[residue, slots]).double()
        n, ca, c = real[:3]
        frame = Rigid.from_three_points(c, ca, n)
        half_turn = torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)
        frame = Rigid(frame.rotation * half_turn, frame.translation)
        built = frame.apply(_build(restype, torsions)[: len(slots)])
        for name, error in zip(ATOM14[restype], (built - real).norm(dim=-1), strict=True):
            bonds = _bonds_from_ca(restype)[name]
            squared[bonds].append(error.item() ** 2)
    for bonds, errors in squared.items():
        if not errors:
            continue
        sigma = math.sqrt(sum((0.03 + 0.07 * k) ** 2 for k in range(1, bonds + 1)))
        assert math.sqrt(np.mean(errors)) <= sigma + 1e-3, (bonds, len(errors))
        assert math.sqrt(max(errors)) <= 5 * sigma + 1e-3, bonds
    assert sum(len(errors) for errors in squared.values()) > 300


def _bonds_from_ca(restype: int) -> dict[str, int]:
    """Number of bonds from CA to each atom; proline's ring is cut between CD and N."""
    distance = {"CA": 0}
    bonds = [{b.first, b.second} for b in BONDS[RESTYPE_NAMES[restype]]]
    while len(distance) < len(ATOM14[restype]):
        for bond in bonds:
            if bond == {"N", "CD"}:
                continue
            for name in bond:
                (other,) = bond - {name}
                if name in distance:
                    distance[other] = min(distance.get(other, 99), distance[name] + 1)
    return distance


def test_groups_are_defined_by_the_atoms_of_their_angle() -> None:
    for restype in range(20):
        names = [[ATOM37[a] for a in atoms] for atoms in GROUP_ATOMS[restype]]
        assert names[0] == ["C", "CA", "N"]
        assert names[3] == ["CA", "C", "O"]
        for chi in range(int(CHI_MASK[restype].sum())):
            assert names[4 + chi] == [ATOM37[a] for a in CHI_ATOMS[restype, chi, 1:]]
        expected = [1.0, 0.0, 0.0, 1.0, *CHI_MASK[restype]]
        assert GROUP_MASK[restype].tolist() == expected
        assert (GROUP_IS_AMBIGUOUS[restype] <= GROUP_MASK[restype]).all()
    # unknown residues have a backbone
    assert GROUP_MASK[20].tolist() == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
