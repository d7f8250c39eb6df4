"""Parents of modified residues, against the PDB's chemical component dictionary (biotite's)."""

from __future__ import annotations

import biotite.structure.info
import pytest

from scalefold.chem.modified_residues import parent, parents
from scalefold.chem.residues import RESTYPE_NAMES, RESTYPES

MIRROR_IMAGES = ["DAL", "DAR", "DSG", "DAS", "DCY", "DGN", "DGL", "DHI", "DIL", "DLE"]
MIRROR_IMAGES += ["DLY", "MED", "DPN", "DPR", "DSN", "DTH", "DTR", "DTY", "DVA"]


@pytest.mark.parametrize("name", MIRROR_IMAGES)
def test_d_amino_acids_have_the_dictionarys_letter(name: str) -> None:
    assert parent(name) == biotite.structure.info.one_letter_code(name)


def test_amino_acids_have_one_letter() -> None:
    assert [parents(name) for name in RESTYPE_NAMES] == list(RESTYPES)


def test_parents_of_all_tables_today_s_first() -> None:
    assert (parents("PCA"), parents("4BF"), parents("MSE"), parents("DSN")) == (
        "QE",
        "FY",
        "M",
        "S",
    )


@pytest.mark.parametrize("name", ["UNK", "CRO", "HOH", "DA", "U", "nonsense", ""])
def test_what_is_no_amino_acid_is_unknown(name: str) -> None:
    assert parent(name) == "X"
