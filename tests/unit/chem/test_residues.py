"""Residue tables against the PDB's chemical component dictionary (as biotite ships it)."""

from __future__ import annotations

from itertools import pairwise

import biotite.structure.info
import numpy as np
import pytest

from scalefold.chem.residues import (
    ATOM14,
    ATOM14_IS_AMBIGUOUS,
    ATOM14_MASK,
    ATOM14_RIGID_GROUP,
    ATOM14_SWAP,
    ATOM14_TO_ATOM37,
    ATOM37,
    ATOM37_MASK,
    ATOM37_TO_ATOM14,
    CHI_ATOMS,
    CHI_MASK,
    CHI_PI_PERIODIC,
    MSA_SYMBOLS,
    RESTYPE_NAMES,
    RESTYPES,
    UNKNOWN,
)

TYPES = pytest.mark.parametrize("restype", range(20), ids=RESTYPE_NAMES)


def _heavy_bonds(restype: int) -> tuple[set[str], set[frozenset[str]]]:
    """Heavy atoms of the residue within a chain, and their bonds."""
    component = biotite.structure.info.residue(RESTYPE_NAMES[restype])
    heavy = {
        str(name)
        for name, element in zip(component.atom_name, component.element, strict=True)
        if element not in ("H", "D")
    } - {"OXT"}
    bonds = {
        frozenset((str(component.atom_name[i]), str(component.atom_name[j])))
        for i, j, _ in component.bonds.as_array()
    }
    return heavy, {bond for bond in bonds if bond <= heavy}


def test_types_are_in_alphabetical_order_of_their_names() -> None:
    assert list(RESTYPE_NAMES) == sorted(RESTYPE_NAMES)
    assert RESTYPES == "ARNDCQEGHILKMFPSTWYV"
    assert MSA_SYMBOLS == RESTYPES + "X-"


@TYPES
def test_letter_is_that_of_the_dictionary(restype: int) -> None:
    assert biotite.structure.info.one_letter_code(RESTYPE_NAMES[restype]) == RESTYPES[restype]


@TYPES
def test_atoms_are_those_of_the_dictionary(restype: int) -> None:
    heavy, _ = _heavy_bonds(restype)
    assert set(ATOM14[restype]) == heavy
    assert ATOM14[restype][:3] == ("N", "CA", "C")
    assert {ATOM37[i] for i in ATOM37_MASK[restype].nonzero()[0]} == heavy


@TYPES
def test_layouts_are_inverse_to_each_other(restype: int) -> None:
    count = len(ATOM14[restype])
    assert ATOM14_MASK[restype].tolist() == [1.0] * count + [0.0] * (14 - count)
    slots = ATOM14_TO_ATOM37[restype, :count]
    assert [ATOM37[i] for i in slots] == list(ATOM14[restype])
    assert ATOM37_TO_ATOM14[restype, slots].tolist() == list(range(count))


def test_unknown_has_no_atoms() -> None:
    assert ATOM14_MASK[UNKNOWN].sum() == ATOM37_MASK[UNKNOWN].sum() == CHI_MASK[UNKNOWN].sum() == 0


@TYPES
def test_chi_angles_follow_bonds_outwards(restype: int) -> None:
    _, bonds = _heavy_bonds(restype)
    count = int(CHI_MASK[restype].sum())
    chains = [[ATOM37[i] for i in CHI_ATOMS[restype, chi]] for chi in range(count)]
    for chi, chain in enumerate(chains):
        assert all(frozenset(pair) in bonds for pair in pairwise(chain))
        if chi:
            assert chain[:3] == chains[chi - 1][1:]
        else:
            assert chain[:2] == ["N", "CA"]
        # the fourth atom moves with the angle
        fourth = ATOM14[restype].index(chain[3])
        assert ATOM14_RIGID_GROUP[restype, fourth] == 4 + chi


def test_number_of_chi_angles() -> None:
    count = dict(zip(RESTYPES, CHI_MASK[:20].sum(1).astype(int), strict=True))
    by_number = {n: "".join(sorted(r for r in count if count[r] == n)) for n in range(5)}
    assert by_number == {0: "AG", 1: "CSTV", 2: "DFHILNPWY", 3: "EMQ", 4: "KR"}


@TYPES
def test_swapping_ambiguous_atoms_keeps_all_bonds(restype: int) -> None:
    _, bonds = _heavy_bonds(restype)
    names = ATOM14[restype]
    partner = {name: names[ATOM14_SWAP[restype, j]] for j, name in enumerate(names)}
    assert all(partner[partner[name]] == name for name in names)
    assert {frozenset(partner[a] for a in bond) for bond in bonds} == bonds
    assert all(name[0] == other[0] for name, other in partner.items())


def test_ambiguous_are_asp_glu_phe_tyr_and_their_last_chi() -> None:
    ambiguous = {RESTYPES[i] for i in ATOM14_IS_AMBIGUOUS.any(1).nonzero()[0]}
    assert ambiguous == set("DEFY")
    for i in range(20):
        last = int(CHI_MASK[i].sum()) - 1
        expected = np.zeros(4)
        if RESTYPES[i] in ambiguous:
            expected[last] = 1.0
            # what swaps hangs from that angle
            swapped = ATOM14_IS_AMBIGUOUS[i].nonzero()[0]
            assert (ATOM14_RIGID_GROUP[i, swapped] == 4 + last).all()
        np.testing.assert_array_equal(CHI_PI_PERIODIC[i], expected)
