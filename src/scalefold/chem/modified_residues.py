"""Modified residues: the amino acid that each stands for in a sequence.

Tables do not always agree, and change: pyroglutamate (PCA) was Glu, and is Gln. Alignments of
AlphaFold2's time have the letters of that time.
"""

from __future__ import annotations

import functools
from typing import Final

import gemmi
from Bio.Data.PDBData import protein_letters_3to1_extended

from scalefold.chem.residues import RESTYPES

_EARLIER: Final = {"PCA": "E", "4BF": "Y"}
"""What the table that AlphaFold2 used (Biopython's SCOPData) has otherwise, X apart."""


@functools.cache
def parent(name: str) -> str:
    """Return the letter of a residue by its name, ``X`` where no amino acid is known for it.

    D-amino acids have the letters of their mirror images, as in wwPDB's canonical sequences.
    """
    letter = protein_letters_3to1_extended.get(name, "X")
    if letter == "X" and gemmi.find_tabulated_residue(name).kind == gemmi.ResidueKind.AAD:
        return _tabulated(name)
    return letter if len(letter) == 1 else "X"


@functools.cache
def parents(name: str) -> str:
    """Return all letters that a residue has in one table or another, `parent` first."""
    letters = (parent(name), _tabulated(name), _EARLIER.get(name, "X"))
    return "".join(dict.fromkeys(letter for letter in letters if letter in RESTYPES))


def _tabulated(name: str) -> str:
    letter = gemmi.find_tabulated_residue(name).one_letter_code.upper()
    return letter if letter in RESTYPES else "X"
