"""Ideal bond lengths and angles with their spread, by residue name.

Source: ``data/stereochemistry.json`` (Engh & Huber values; Jumper et al. 2021, Suppl. sec. 1.9.11).
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final, NamedTuple

_DATA: Final[dict[str, Any]] = json.loads(
    resources.files("scalefold.chem").joinpath("data/stereochemistry.json").read_text("utf-8")
)


class Bond(NamedTuple):
    """A covalent bond inside a residue."""

    first: str
    second: str
    length_angstrom: float
    stddev_angstrom: float


class BondAngle(NamedTuple):
    """The angle at ``middle`` between two bonds of a residue."""

    first: str
    middle: str
    last: str
    angle_degree: float
    stddev_degree: float


BONDS: Final[dict[str, tuple[Bond, ...]]] = {
    name: tuple(
        Bond._make((*row["name"].split("-"), row["length_angstrom"], row["stddev_angstrom"]))
        for row in rows
    )
    for name, rows in _DATA["bonds"].items()
}
BOND_ANGLES: Final[dict[str, tuple[BondAngle, ...]]] = {
    name: tuple(
        BondAngle._make((*row["name"].split("-"), row["angle_degree"], row["stddev_degree"]))
        for row in rows
    )
    for name, rows in _DATA["angles"].items()
}

# Between neighbouring residues: (next residue is not proline, next residue is proline).
PEPTIDE_BOND_LENGTH_ANGSTROM: Final[tuple[float, float]] = tuple(
    _DATA["peptide_bond"]["length_c_n_angstrom"]
)
PEPTIDE_BOND_STDDEV_ANGSTROM: Final[tuple[float, float]] = tuple(
    _DATA["peptide_bond"]["stddev_c_n_angstrom"]
)
# (mean, standard deviation) of the cosine.
PEPTIDE_COS_C_N_CA: Final[tuple[float, float]] = tuple(_DATA["peptide_bond"]["cos_angle_c_n_ca"])
PEPTIDE_COS_CA_C_N: Final[tuple[float, float]] = tuple(_DATA["peptide_bond"]["cos_angle_ca_c_n"])
