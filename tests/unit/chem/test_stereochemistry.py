"""Bonds, angles and distance bounds, against the component dictionary and real structures."""

from __future__ import annotations

import math
from pathlib import Path

import biotite.structure
import biotite.structure.info
import numpy as np
import pytest

from scalefold.chem.bounds import (
    ATOM14_RADIUS_ANGSTROM,
    UNBOUNDED_ANGSTROM,
    atom14_distance_bounds,
    opposite_edge,
)
from scalefold.chem.residues import ATOM14, ATOM14_MASK, ATOM37, RESTYPE_NAMES, RESTYPES
from scalefold.chem.stereochemistry import (
    BOND_ANGLES,
    BONDS,
    PEPTIDE_BOND_LENGTH_ANGSTROM,
    PEPTIDE_COS_C_N_CA,
    PEPTIDE_COS_CA_C_N,
    Bond,
    BondAngle,
)
from scalefold.raw.mmcif import read_entry

DEMO = Path(__file__).parents[3] / "demo/mirror/wwpdb"
TYPES = pytest.mark.parametrize("restype", range(20), ids=RESTYPE_NAMES)


@pytest.fixture(scope="module")
def residues() -> list[tuple[str, dict[str, np.ndarray]]]:
    """Name and observed atoms of every residue of seven real chains."""
    found = []
    for entry in ("1aki", "1ay7", "1mol", "3zee", "4i6p", "102m", "3o5r"):
        chain = read_entry(next(DEMO.rglob(f"{entry}.cif.gz"))).chains[0]
        for aatype, positions, mask in zip(
            chain.aatype, chain.positions.astype(np.float64), chain.atom_mask, strict=True
        ):
            if aatype < 20:
                atoms = {ATOM37[i]: positions[i] for i in np.flatnonzero(mask)}
                found.append((RESTYPE_NAMES[aatype], atoms))
    return found


@TYPES
def test_bonds_are_those_of_the_dictionary(restype: int) -> None:
    component = biotite.structure.info.residue(RESTYPE_NAMES[restype])
    names = component.atom_name.tolist()
    heavy = set(ATOM14[restype])
    expected = {frozenset((names[i], names[j])) for i, j, _ in component.bonds.as_array()}
    expected = {bond for bond in expected if bond <= heavy}
    found = [frozenset(bond[:2]) for bond in BONDS[RESTYPE_NAMES[restype]]]
    assert len(found) == len(set(found))
    assert set(found) == expected


@TYPES
def test_every_angle_is_between_two_bonds(restype: int) -> None:
    bonds = {frozenset(bond[:2]) for bond in BONDS[RESTYPE_NAMES[restype]]}
    angles = BOND_ANGLES[RESTYPE_NAMES[restype]]
    assert len({(frozenset((a.first, a.last)), a.middle) for a in angles}) == len(angles)
    for angle in angles:
        assert frozenset((angle.first, angle.middle)) in bonds
        assert frozenset((angle.middle, angle.last)) in bonds


def test_lengths_and_angles_are_those_of_real_structures(
    residues: list[tuple[str, dict[str, np.ndarray]]],
) -> None:
    lengths: dict[tuple[str, Bond], list[float]] = {}
    angles: dict[tuple[str, BondAngle], list[float]] = {}
    for name, at in residues:
        for bond in BONDS[name]:
            if {bond.first, bond.second} <= at.keys():
                distance = float(np.linalg.norm(at[bond.first] - at[bond.second]))
                lengths.setdefault((name, bond), []).append(distance)
        for angle in BOND_ANGLES[name]:
            points = [at.get(a) for a in (angle.first, angle.middle, angle.last)]
            if all(p is not None for p in points):
                degrees = math.degrees(biotite.structure.angle(*points))
                angles.setdefault((name, angle), []).append(degrees)
    assert len(lengths) == sum(len(BONDS[name]) for name in RESTYPE_NAMES)
    for (name, bond), values in lengths.items():
        allowed = 2 * bond.stddev_angstrom
        assert np.median(values) == pytest.approx(bond.length_angstrom, abs=allowed), (name, bond)
    for (name, angle), values in angles.items():
        allowed = 3 * angle.stddev_degree
        assert np.median(values) == pytest.approx(angle.angle_degree, abs=allowed), (name, angle)


def test_peptide_bond_is_that_of_real_structures() -> None:
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    for entry in ("1aki", "1ay7", "1mol", "3zee", "4i6p", "102m", "3o5r"):
        chain = read_entry(next(DEMO.rglob(f"{entry}.cif.gz"))).chains[0]
        for i in range(len(chain.aatype) - 1):
            if not (chain.atom_mask[i, :3].all() and chain.atom_mask[i + 1, :3].all()):
                continue
            ca, c = chain.positions[i, 1:3].astype(np.float64)
            n, next_ca = chain.positions[i + 1, :2].astype(np.float64)
            found[RESTYPES[chain.aatype[i + 1]] == "P"].append(
                [
                    float(np.linalg.norm(c - n)),
                    math.cos(biotite.structure.angle(ca, c, n)),
                    math.cos(biotite.structure.angle(c, n, next_ca)),
                ]
            )
    assert len(found[True]) > 15
    for is_proline, rows in found.items():
        length, ca_c_n, c_n_ca = np.median(rows, axis=0)
        assert length == pytest.approx(PEPTIDE_BOND_LENGTH_ANGSTROM[is_proline], abs=0.015)
        assert ca_c_n == pytest.approx(PEPTIDE_COS_CA_C_N[0], abs=PEPTIDE_COS_CA_C_N[1])
        assert c_n_ca == pytest.approx(PEPTIDE_COS_C_N_CA[0], abs=PEPTIDE_COS_C_N_CA[1])


def test_opposite_edge_is_the_third_side_of_the_triangle() -> None:
    bonds = (Bond("B", "A", 3.0, 0.02), Bond("B", "C", 4.0, 0.03))
    angle = BondAngle("A", "B", "C", 90.0, 2.0)
    edge = opposite_edge(angle, bonds)
    assert (edge.first, edge.second) == ("A", "C")
    assert edge.length_angstrom == pytest.approx(5.0)
    rng = np.random.default_rng(0)
    a = rng.normal(3.0, 0.02, 200_000)
    b = rng.normal(4.0, 0.03, 200_000)
    gamma = np.radians(rng.normal(90.0, 2.0, 200_000))
    sampled = np.sqrt(a * a + b * b - 2 * a * b * np.cos(gamma)).std()
    # first-order propagation; the sample's own spread is 0.16 %
    assert edge.stddev_angstrom == pytest.approx(sampled, rel=0.01)


def test_bounds_are_symmetric_and_only_between_atoms_that_exist() -> None:
    lower, upper = atom14_distance_bounds(1.5, 12.0)
    np.testing.assert_array_equal(lower, lower.transpose(0, 2, 1))
    np.testing.assert_array_equal(upper, upper.transpose(0, 2, 1))
    pair = (ATOM14_MASK[:, :, None] * ATOM14_MASK[:, None, :]).astype(bool) & ~np.eye(
        14, dtype=bool
    )
    assert (lower[pair] > 0).all()
    assert (lower[pair] < upper[pair]).all()
    assert not lower[~pair].any()
    assert not upper[~pair].any()


def test_bounds_of_alanine_by_hand() -> None:
    lower, upper = atom14_distance_bounds(1.5, 12.0)
    n, ca, _, o, cb = (ATOM14[0].index(a) for a in ("N", "CA", "C", "O", "CB"))
    # bonded: 1.459 +- 12 x 0.020
    assert (lower[0, n, ca], upper[0, n, ca]) == pytest.approx((1.219, 1.699))
    # neither bonded nor sharing an angle: van der Waals radii of C and O
    assert lower[0, cb, o] == pytest.approx(1.7 + 1.52 - 1.5)
    assert upper[0, cb, o] == np.float32(UNBOUNDED_ANGSTROM)


def test_tolerance_widens_the_bounds() -> None:
    tight, wide = atom14_distance_bounds(1.0, 3.0), atom14_distance_bounds(1.5, 12.0)
    assert (tight.lower >= wide.lower).all()
    assert (tight.upper <= wide.upper).all()


def test_radii_follow_the_element() -> None:
    for i, atoms in enumerate(ATOM14):
        for j, name in enumerate(atoms):
            expected = {"C": 1.7, "N": 1.55, "O": 1.52, "S": 1.8}[name[0]]
            assert ATOM14_RADIUS_ANGSTROM[i, j] == expected
        assert not ATOM14_RADIUS_ANGSTROM[i, len(atoms) :].any()
