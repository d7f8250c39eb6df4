"""Allowed distances between the atoms of a residue, and atom radii, in the atom14 layout.

Source: Jumper et al. 2021, Suppl. sec. 1.9.11.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import (
    ATOM14,
    NUM_RESTYPES,
    RESTYPE_NAMES,
    VAN_DER_WAALS_RADIUS_ANGSTROM,
)
from scalefold.chem.stereochemistry import BOND_ANGLES, BONDS, Bond, BondAngle

UNBOUNDED_ANGSTROM: Final = 1e10
"""Upper bound for atoms that share no bond or bond angle."""


class DistanceBounds(NamedTuple):
    """Allowed distances in Å, [21, 14, 14] float32, symmetric; 0 where there is no such pair."""

    lower: NDArray[np.float32]
    upper: NDArray[np.float32]


def _radii() -> NDArray[np.float64]:
    radii = np.zeros((21, 14))
    for i, atoms in enumerate(ATOM14):
        for j, name in enumerate(atoms):
            radii[i, j] = VAN_DER_WAALS_RADIUS_ANGSTROM[name[0]]
    return radii


ATOM14_RADIUS_ANGSTROM: Final = _radii()
"""[21, 14] float64, van der Waals radius of each atom, 0 where there is none."""


def opposite_edge(angle: BondAngle, bonds: tuple[Bond, ...]) -> Bond:
    """Distance between the outer atoms of a bond angle, treated as a bond.

    Length by the law of cosines; the standard deviation by propagation of the (uncorrelated) errors
    of both bond lengths and the angle.
    """
    by_atoms = {frozenset((bond.first, bond.second)): bond for bond in bonds}
    one = by_atoms[frozenset((angle.first, angle.middle))]
    two = by_atoms[frozenset((angle.middle, angle.last))]
    a, b = one.length_angstrom, two.length_angstrom
    gamma = math.radians(angle.angle_degree)
    length = math.sqrt(a * a + b * b - 2 * a * b * math.cos(gamma))
    variance = (
        (a * b * math.sin(gamma) * math.radians(angle.stddev_degree)) ** 2
        + ((a - b * math.cos(gamma)) * one.stddev_angstrom) ** 2
        + ((b - a * math.cos(gamma)) * two.stddev_angstrom) ** 2
    )
    return Bond(angle.first, angle.last, length, math.sqrt(variance) / length)


def atom14_distance_bounds(
    overlap_tolerance_angstrom: float, tolerance_factor: float
) -> DistanceBounds:
    """Bounds on the distances inside each residue type.

    Bonded atoms and atoms that share a bond angle: literature value plus or minus
    ``tolerance_factor`` standard deviations. All other pairs: at least the sum of the van der Waals
    radii less ``overlap_tolerance_angstrom``.
    """
    lower = np.zeros((21, 14, 14), np.float32)
    upper = np.zeros((21, 14, 14), np.float32)
    for i in range(NUM_RESTYPES):
        atoms, bonds = ATOM14[i], BONDS[RESTYPE_NAMES[i]]
        n = len(atoms)
        radius = ATOM14_RADIUS_ANGSTROM[i, :n]
        different = ~np.eye(n, dtype=bool)
        touching = radius[:, None] + radius[None, :] - overlap_tolerance_angstrom
        lower[i, :n, :n] = different * touching
        upper[i, :n, :n] = different * UNBOUNDED_ANGSTROM
        edges = [opposite_edge(angle, bonds) for angle in BOND_ANGLES[RESTYPE_NAMES[i]]]
        for bond in (*bonds, *edges):
            j, k = atoms.index(bond.first), atoms.index(bond.second)
            spread = tolerance_factor * bond.stddev_angstrom
            lower[i, j, k] = lower[i, k, j] = bond.length_angstrom - spread
            upper[i, j, k] = upper[i, k, j] = bond.length_angstrom + spread
    return DistanceBounds(lower, upper)
