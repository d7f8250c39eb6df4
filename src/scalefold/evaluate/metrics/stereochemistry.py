"""Count what no real protein has: broken peptide bonds, and atoms inside each other."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from scalefold.chem.residues import ATOM37, ATOM37_INDEX, RESTYPE_INDEX
from scalefold.chem.residues import VAN_DER_WAALS_RADIUS_ANGSTROM as RADIUS_ANGSTROM
from scalefold.chem.residues import C as CARBONYL
from scalefold.chem.residues import N as NITROGEN
from scalefold.chem.stereochemistry import (
    PEPTIDE_BOND_LENGTH_ANGSTROM,
    PEPTIDE_BOND_STDDEV_ANGSTROM,
)
from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.loss.violation import OVERLAP_TOLERANCE_ANGSTROM, TOLERANCE_FACTOR

_SULPHUR: Final = ATOM37_INDEX["SG"]
_ROWS_AT_ONCE: Final = 512  # bounds memory: rows x atoms distances in float64


class Stereochemistry(NamedTuple):
    """Violations of a prediction, with the tolerances of AlphaFold's violation loss.

    Attributes
    ----------
    peptide_bonds : int
        Neighbours in the sequence with both atoms of the bond predicted.
    broken_bonds : int
        Of these, how many have a C-N distance more than 12 standard deviations off.
    clashes : int
        Pairs of heavy atoms of different residues whose van der Waals spheres overlap by more than
        1.5 Å. Peptide bonds and bridges of two cysteines do not count.
    """

    peptide_bonds: int
    broken_bonds: int
    clashes: int


def stereochemistry(comparison: Comparison) -> Stereochemistry:
    """Count the violations of the predicted structure; the true one plays no part."""
    bonded, broken = _peptide_bonds(comparison)
    return Stereochemistry(int(bonded.sum()), int(broken.sum()), len(_clashes(comparison)))


def violating_residues(comparison: Comparison) -> Tensor:
    """Residues of the predicted structure with a broken bond or a clash, shape (N,), bool."""
    _, broken = _peptide_bonds(comparison)
    found = torch.zeros(len(comparison.aatype), dtype=torch.bool)
    found[:-1] |= broken
    found[1:] |= broken
    found[_clashes(comparison).flatten()] = True
    return found


def _peptide_bonds(comparison: Comparison) -> tuple[Tensor, Tensor]:
    """Which neighbours are bonded, and which of these bonds are broken, shape (N - 1,)."""
    positions, mask = comparison.predicted, comparison.predicted_mask
    bonded = mask[:-1, CARBONYL] & mask[1:, NITROGEN]
    length = (positions[1:, NITROGEN] - positions[:-1, CARBONYL]).norm(dim=-1)
    before_proline = (comparison.aatype[1:] == RESTYPE_INDEX["P"]).long()
    ideal = torch.tensor(PEPTIDE_BOND_LENGTH_ANGSTROM)[before_proline]
    tolerance = TOLERANCE_FACTOR * torch.tensor(PEPTIDE_BOND_STDDEV_ANGSTROM)[before_proline]
    return bonded, bonded & ((length - ideal).abs() > tolerance)


def _clashes(comparison: Comparison) -> Tensor:
    """The residues of each pair of clashing atoms, shape (pairs, 2)."""
    positions, mask = comparison.predicted, comparison.predicted_mask
    residue, slot = mask.nonzero(as_tuple=True)
    points = positions[mask]
    radius = torch.tensor([RADIUS_ANGSTROM[name[0]] for name in ATOM37]).double()[slot]
    pairs = [residue.new_empty(0, 2)]
    for rows in torch.arange(len(points)).split(_ROWS_AT_ONCE):
        distance = torch.cdist(points[rows], points)
        touching = radius[rows, None] + radius - OVERLAP_TOLERANCE_ANGSTROM
        i, j = ((distance < touching) & (residue[rows, None] < residue)).nonzero(as_tuple=True)
        i = rows[i]
        peptide = (residue[j] - residue[i] == 1) & (slot[i] == CARBONYL) & (slot[j] == NITROGEN)
        bridge = (slot[i] == _SULPHUR) & (slot[j] == _SULPHUR)
        pairs.append(torch.stack([residue[i], residue[j]], 1)[~(peptide | bridge)])
    return torch.cat(pairs)
