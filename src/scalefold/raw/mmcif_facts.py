"""What an mmCIF block says beside its atoms: names, dates, resolution, and which chains it has."""

from __future__ import annotations

import datetime
import math

import gemmi

from scalefold.errors import InputError
from scalefold.raw.atom_site import ABSENT


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


def stated_method(block: gemmi.cif.Block) -> str:
    """Return the experimental method in lower case; several are joined by commas."""
    return ",".join(gemmi.cif.as_string(v).lower() for v in block.find_values("_exptl.method"))


def stated_resolution(block: gemmi.cif.Block) -> float | None:
    """Return the resolution in Å, ``None`` where none is stated."""
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


def stated_release_date(block: gemmi.cif.Block, source: str) -> datetime.date | None:
    """Return the date of the first release, ``None`` where none is stated.

    Raises
    ------
    InputError
        What is stated is no date; ``source`` names the file.
    """
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
    """Whether it is said of each chain, and of each atom, which residues they have and are in."""
    tables = (
        ("_entity_poly_seq.", ["entity_id", "num", "mon_id"]),
        ("_struct_asym.", ["id", "entity_id"]),
        ("_atom_site.", ["label_asym_id", "auth_asym_id", "label_seq_id"]),
    )
    return all(len(block.find(category, items)) for category, items in tables)


def protein_monomers(block: gemmi.cif.Block, source: str) -> dict[str, dict[int, str]]:
    """Return the monomer names of each protein chain: label_asym_id -> sequence number -> name.

    A polymer with at least one peptide-like component is a protein, as in AlphaFold2; or one that
    is a polypeptide by its type.

    Raises
    ------
    InputError
        A residue's number is none; ``source`` names the file.
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
