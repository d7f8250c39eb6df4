"""What an mmCIF block states beside its atoms: name, date, resolution, and its protein chains."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

import gemmi

from scalefold.errors import InputError
from scalefold.raw.atom_site import ABSENT


@dataclass(frozen=True, eq=False)
class EntryFacts:
    """What an entry states beside its chains.

    Parameters
    ----------
    entry_id
        Lower-case name; not assumed to have four characters.
    method
        Experimental method in lower case; several are joined by commas.
    resolution
        Å, or ``None`` where none is stated (as in NMR entries).
    release_date
        First release, or ``None`` where none is stated.
    """

    entry_id: str
    method: str
    resolution: float | None
    release_date: datetime.date | None


def read_facts(block: gemmi.cif.Block, name: str, source: str) -> EntryFacts:
    """Read what a block states; ``source`` names the file in errors (:class:`InputError`)."""
    methods = (gemmi.cif.as_string(v).lower() for v in block.find_values("_exptl.method"))
    date = _release_date(block, source)
    return EntryFacts(name.lower(), ",".join(methods), _resolution(block), date)


def entry_name(block: gemmi.cif.Block, name: str) -> str:
    """Return the entry's name: the one an archive's file states, otherwise the file's, ``name``."""
    if not name or "PDB" in block.find_values("_database_2.database_id"):
        return first_value(block, "_entry.id") or name or str(block.name)
    return name


def first_value(block: gemmi.cif.Block, tag: str) -> str | None:
    """Return the first value of a tag, ``None`` where the tag or its value is absent."""
    for value in block.find_values(tag):
        return None if value in ABSENT else str(gemmi.cif.as_string(value))
    return None


def _resolution(block: gemmi.cif.Block) -> float | None:
    for tag in (
        "_refine.ls_d_res_high",
        "_em_3d_reconstruction.resolution",
        "_reflns.d_resolution_high",
    ):
        value = first_value(block, tag)
        if value is None:
            continue
        resolution = float(gemmi.cif.as_number(value))
        if math.isfinite(resolution) and resolution > 0.0:
            return resolution
    return None


def _release_date(block: gemmi.cif.Block, source: str) -> datetime.date | None:
    tag = "_pdbx_audit_revision_history.revision_date"
    texts = [gemmi.cif.as_string(v) for v in block.find_values(tag) if v not in ABSENT]
    if not texts:
        return None
    try:
        return min(datetime.date.fromisoformat(text) for text in texts)
    except ValueError as error:
        raise InputError(
            f"{source}: {tag} holds {texts}, expected dates as YYYY-MM-DD ({error}). "
            "Download the file again."
        ) from error


def states_residues(block: gemmi.cif.Block) -> bool:
    """Whether the block states the residues of each chain, and the residue of each atom."""
    tables = (
        ("_entity_poly_seq.", ["entity_id", "num", "mon_id"]),
        ("_struct_asym.", ["id", "entity_id"]),
        ("_atom_site.", ["label_asym_id", "auth_asym_id", "label_seq_id"]),
    )
    return all(len(block.find(category, items)) for category, items in tables)


def protein_monomers(block: gemmi.cif.Block, source: str) -> dict[str, dict[int, str]]:
    """Return the monomer names of each protein chain: label_asym_id -> sequence number -> name.

    A polymer is a protein if it has a peptide-like component, as in AlphaFold2, or if its type is
    polypeptide.

    Raises
    ------
    InputError
        A residue's number is not a number; ``source`` names the file.
    """
    polymers: dict[str, dict[int, str]] = {}
    types = block.find("_entity_poly.", ["entity_id", "type"])
    proteins = {gemmi.cif.as_string(e) for e, kind in types if "polypeptide" in kind.lower()}
    components = block.find("_chem_comp.", ["id", "type"])
    stated = {gemmi.cif.as_string(name): gemmi.cif.as_string(kind) for name, kind in components}
    for row in block.find("_entity_poly_seq.", ["entity_id", "num", "mon_id"]):
        entity, name = gemmi.cif.as_string(row[0]), gemmi.cif.as_string(row[2])
        if _is_peptide(name, stated.get(name, "")):
            proteins.add(entity)
        # Further rows of the same number are alternatives (microheterogeneity).
        try:
            number = int(row[1])
        except ValueError as error:
            raise InputError(
                f"{source}: _entity_poly_seq.num of entity {entity} is {row[1]!r}, expected a "
                "whole number. Download the file again."
            ) from error
        polymers.setdefault(entity, {}).setdefault(number, name)
    chains: dict[str, dict[int, str]] = {}
    for label, entity in block.find("_struct_asym.", ["id", "entity_id"]):
        entity = gemmi.cif.as_string(entity)
        if entity in proteins and entity in polymers:
            chains[gemmi.cif.as_string(label)] = dict(sorted(polymers[entity].items()))
    return chains


def _is_peptide(name: str, stated: str) -> bool:
    if stated:
        return "peptide" in stated.lower()
    return gemmi.find_tabulated_residue(name).is_amino_acid()
