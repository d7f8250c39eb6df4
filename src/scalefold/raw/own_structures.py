"""Structures that are not an archive's mmCIF file: PDB files, and mmCIF files of programs.

They may not state the residues of a chain. These are taken from SEQRES, or else from the atoms. The
result is a block as an archive's file has it, for :mod:`scalefold.raw.mmcif` to read.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import re
import string
from typing import Final

import gemmi

from scalefold.errors import InputError

logger = logging.getLogger(__name__)

GEMMI_ERRORS: Final = (ValueError, RuntimeError, LookupError, ArithmeticError)
"""What gemmi raises for a file that it cannot read."""
MAX_RESIDUES: Final = 65_535
_PEPTIDE_BOND_ANGSTROM: Final = 2.0
_REVISION: Final = re.compile(rb"^REVDAT.{7}(\d\d)-([A-Z]{3})-(\d\d)", re.MULTILINE)
_MONTHS: Final = "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"
_OLDEST_YEAR: Final = 72  # of the PDB's two digits


def read_pdb(content: bytes, source: str) -> gemmi.cif.Block:
    """Return a PDB file as an mmCIF block, see `complete`."""
    # One byte is one column, and names are ASCII: gemmi would cut a longer character in two.
    text = content.decode("ascii", errors="replace").replace("\ufffd", "?")
    try:
        structure = gemmi.read_pdb_string(text)
    except GEMMI_ERRORS as error:
        raise InputError(
            f"{source}: not readable as a PDB file: {error}. Write it again, or leave it out."
        ) from error
    block = complete(structure, source)
    if structure.resolution > 0.0:
        block.set_pair("_refine.ls_d_res_high", f"{structure.resolution:g}")
    dates = block.init_loop("_pdbx_audit_revision_history.", ["revision_date"])
    for day, month, year in _REVISION.findall(content):
        dates.add_row([_date(int(day), month.decode(), int(year), source)])
    return block


def complete_block(block: gemmi.cif.Block, source: str) -> gemmi.cif.Block:
    """Complete the block of an mmCIF file, see `complete`."""
    try:
        structure = gemmi.make_structure_from_block(block)
    except GEMMI_ERRORS as error:
        raise InputError(
            f"{source}: its structure cannot be read: {error}. Write the file again, or leave "
            "it out."
        ) from error
    return complete(structure, source)


def complete(structure: gemmi.Structure, source: str) -> gemmi.cif.Block:
    """Return the first model of a structure as an archive's mmCIF block.

    If no sequence is stated, a chain has the residues with atoms. Between two residues that are not
    bonded, it has as many unknown residues as their numbers skip.

    Raises
    ------
    InputError
        There are no atoms, or a chain's residues are not those of its stated sequence. ``source``
        names the file.
    """
    if len(structure) == 0 or structure[0].count_atom_sites() == 0:
        raise InputError(f"{source}: has no atoms. Write it again, or leave it out.")
    while len(structure) > 1:
        del structure[1]
    if not any(entity.full_sequence for entity in structure.entities):
        _forget_labels(structure)
    _name_chains(structure)
    structure.setup_entities()
    structure.assign_label_seq_id()
    for chain in structure[0]:
        polymer = chain.get_polymer()
        entity = structure.get_entity_of(polymer)
        if entity is None or not any(_is_amino_acid(residue) for residue in polymer):
            continue
        where = f"{source}: chain {chain.name}"
        if entity.full_sequence:
            _check_sequence(polymer, entity.full_sequence, where)
        else:
            entity.full_sequence = _number(polymer, where)
    return structure.make_mmcif_block()


def _is_amino_acid(residue: gemmi.Residue) -> bool:
    return gemmi.find_tabulated_residue(residue.name).is_amino_acid()


def _forget_labels(structure: gemmi.Structure) -> None:
    """Tell polymers, ligands and water apart by the atoms: programs label chains in many ways."""
    structure.entities.clear()
    for chain in structure[0]:
        for residue in chain:
            residue.entity_id = ""
    structure.add_entity_types(overwrite=True)
    structure.assign_subchains(force=True)


def _name_chains(structure: gemmi.Structure) -> None:
    """Name chains without a name: old PDB files of one chain have them."""
    taken = {chain.name for chain in structure[0]}
    free = (letter for letter in string.ascii_uppercase if letter not in taken)
    if "" in taken:
        structure.rename_chain("", next(free, "1"))


def _residues(polymer: gemmi.ResidueSpan) -> list[list[gemmi.Residue]]:
    """Return the residues of a chain: for each place, all alternatives.

    gemmi's ``residue_groups`` runs past the end if the next residue has the last one's number.
    """
    places = itertools.groupby(polymer, key=lambda residue: str(residue.seqid))
    return [list(alternatives) for _, alternatives in places]


def _check_sequence(polymer: gemmi.ResidueSpan, sequence: list[str], where: str) -> None:
    for alternatives in _residues(polymer):
        number = alternatives[0].label_seq
        stated = sequence[number - 1] if number is not None and number <= len(sequence) else ""
        if {residue.name for residue in alternatives}.isdisjoint(stated.split(",")):
            raise InputError(
                f"{where}: residue {_named(alternatives[0])} has atoms, but is not in the stated "
                f"sequence of {len(sequence)} residues (SEQRES). Correct that, or remove it: then "
                "the atoms say the sequence."
            )


def _number(polymer: gemmi.ResidueSpan, where: str) -> list[str]:
    """Number the residues of a chain by place, and return their names by place."""
    names: list[str] = []
    skipped: list[str] = []
    before: gemmi.Residue | None = None
    for alternatives in _residues(polymer):
        residue = alternatives[0]
        gap = (
            0 if before is None or _is_bound(before, residue) else _numbers_between(before, residue)
        )
        if len(names) + gap >= MAX_RESIDUES:
            raise InputError(
                f"{where}: up to residue {_named(residue)}, with those that its numbers skip, it "
                f"has more than {MAX_RESIDUES:,} residues. Correct the numbers."
            )
        if before is not None and gap:
            skipped.append(f"{gap} after {_named(before)}")
            names += ["UNK"] * gap
        names.append(residue.name)
        before = residue
        for alternative in alternatives:
            alternative.label_seq = len(names)
    if skipped:
        logger.warning(
            "%s: no sequence is stated; gaps in numbering become X: %s",
            where,
            ", ".join(skipped),
        )
    return names


def _named(residue: gemmi.Residue) -> str:
    return f"{residue.name} {residue.seqid}"


def _numbers_between(first: gemmi.Residue, second: gemmi.Residue) -> int:
    return max(0, (second.seqid.num or 0) - (first.seqid.num or 0) - 1)


def _is_bound(first: gemmi.Residue, second: gemmi.Residue) -> bool:
    c, n = first.find_atom("C", "*"), second.find_atom("N", "*")
    return bool(c and n and c.pos.dist(n.pos) < _PEPTIDE_BOND_ANGSTROM)


def _date(day: int, month: str, year: int, source: str) -> str:
    century = 1900 if year >= _OLDEST_YEAR else 2000
    try:
        return datetime.date(century + year, _MONTHS.index(month) // 3 + 1, day).isoformat()
    except ValueError as error:
        raise InputError(
            f"{source}: REVDAT holds {day}-{month}-{year}, expected a date as 01-JAN-00. Correct "
            "or remove it."
        ) from error
