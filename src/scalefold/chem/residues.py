"""The 20 amino acids: letters, atom layouts (atom37, atom14), torsion angles, ambiguous atoms.

Residue types are numbered 0-19 in AlphaFold2's order (alphabetical by three-letter code),
20 = X (unknown), 21 = gap, 22 = BERT mask. All tables have one row a residue type and a 21st, empty
row for X. Two atom layouts are used:

- *atom37*: one slot for each of the 37 heavy-atom names, the same for all residues;
- *atom14*: the at most 14 heavy atoms of a residue, packed.

Source of the numbers: ``data/residues.json`` (Jumper et al. 2021, Suppl. Table 2 and sec. 1.8).
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_DATA: Final[dict[str, Any]] = json.loads(
    resources.files("scalefold.chem").joinpath("data/residues.json").read_text("utf-8")
)
_RESIDUES: Final[list[dict[str, Any]]] = _DATA["residues"]

RESTYPES: Final = "".join(r["one_letter"] for r in _RESIDUES)
"""One-letter codes of types 0-19."""
RESTYPE_NAMES: Final[tuple[str, ...]] = tuple(r["name"] for r in _RESIDUES)
"""Three-letter codes of types 0-19."""
RESTYPES_WITH_X: Final = RESTYPES + "X"
MSA_SYMBOLS: Final = RESTYPES + "X-"
"""Symbols of an alignment row, by code: 0-19 residues, 20 unknown, 21 gap."""

UNKNOWN: Final = 20
GAP: Final = 21
MASK: Final = 22
NUM_RESTYPES: Final = 20

RESTYPE_INDEX: Final[dict[str, int]] = {letter: i for i, letter in enumerate(RESTYPES_WITH_X)}

ATOM37: Final[tuple[str, ...]] = tuple(_DATA["atom37"])
"""Heavy-atom names of the atom37 layout, by slot."""
ATOM37_INDEX: Final[dict[str, int]] = {name: i for i, name in enumerate(ATOM37)}
ATOM14: Final[tuple[tuple[str, ...], ...]] = (
    *(tuple(atom["name"] for atom in r["atoms"]) for r in _RESIDUES),
    (),
)
"""Heavy-atom names of each residue type, by atom14 slot."""

N, CA, C, CB, O = (ATOM37_INDEX[name] for name in ("N", "CA", "C", "CB", "O"))  # noqa: E741

VAN_DER_WAALS_RADIUS_ANGSTROM: Final[dict[str, float]] = _DATA["van_der_waals_radius_angstrom"]
"""By element symbol."""


def _tables() -> tuple[NDArray[Any], ...]:
    atom14_to_atom37 = np.zeros((21, 14), np.int64)
    atom37_to_atom14 = np.zeros((21, 37), np.int64)
    atom14_mask = np.zeros((21, 14), np.float32)
    atom37_mask = np.zeros((21, 37), np.float32)
    atom14_group = np.zeros((21, 14), np.int64)
    atom14_position = np.zeros((21, 14, 3), np.float32)
    for i, residue in enumerate(_RESIDUES):
        for j, atom in enumerate(residue["atoms"]):
            k = ATOM37_INDEX[atom["name"]]
            atom14_to_atom37[i, j], atom37_to_atom14[i, k] = k, j
            atom14_mask[i, j] = atom37_mask[i, k] = 1.0
            atom14_group[i, j] = atom["rigid_group"]
            atom14_position[i, j] = atom["position_angstrom"]
    return (
        atom14_to_atom37,
        atom37_to_atom14,
        atom14_mask,
        atom37_mask,
        atom14_group,
        atom14_position,
    )


(
    ATOM14_TO_ATOM37,  # [21, 14] int64, 0 where there is no atom
    ATOM37_TO_ATOM14,  # [21, 37] int64, 0 where there is no atom
    ATOM14_MASK,  # [21, 14] float32
    ATOM37_MASK,  # [21, 37] float32
    ATOM14_RIGID_GROUP,  # [21, 14] int64: 0 backbone, 3 psi, 4-7 chi1-chi4
    ATOM14_LOCAL_POSITION,  # [21, 14, 3] float32, Å, in the frame of the atom's rigid group
) = _tables()


def _chi_tables() -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    atoms = np.zeros((21, 4, 4), np.int64)
    mask = np.zeros((21, 4), np.float32)
    pi_periodic = np.zeros((21, 4), np.float32)
    for i, residue in enumerate(_RESIDUES):
        for chi, names in enumerate(residue["chi_atoms"]):
            atoms[i, chi] = [ATOM37_INDEX[name] for name in names]
            mask[i, chi] = 1.0
            pi_periodic[i, chi] = residue["chi_pi_periodic"][chi]
    return atoms, mask, pi_periodic


CHI_ATOMS, CHI_MASK, CHI_PI_PERIODIC = _chi_tables()
"""Atom37 slots of the four atoms of each chi angle [21, 4, 4]; whether the angle exists [21, 4];
whether chi and chi + pi are the same conformation [21, 4]."""


def _swap_table() -> NDArray[np.int64]:
    swapped = np.tile(np.arange(14), (21, 1))
    for i, residue in enumerate(_RESIDUES):
        for first, second in residue["swaps"]:
            j, k = ATOM14[i].index(first), ATOM14[i].index(second)
            swapped[i, j], swapped[i, k] = k, j
    return swapped


ATOM14_SWAP: Final = _swap_table()
"""[21, 14] the atom14 slot that holds the atom under the alternative naming of 180°-symmetric
groups (Asp, Glu, Phe, Tyr); the identity elsewhere (Suppl. sec. 1.8.5, Table 3)."""
ATOM14_IS_AMBIGUOUS: Final = (np.arange(14) != ATOM14_SWAP).astype(np.float32)
"""[21, 14] 1 where an atom's name is ambiguous."""
