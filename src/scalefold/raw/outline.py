"""The protein chains of an entry and all of their names, if possible without reading atoms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gemmi

from scalefold.chem.modified_residues import parent
from scalefold.raw.atom_site import ABSENT
from scalefold.raw.compressed import MAX_STRUCTURE_BYTES, read_bytes
from scalefold.raw.mmcif import read_entry
from scalefold.raw.mmcif_facts import EntryFacts, entry_name, protein_monomers, read_facts
from scalefold.raw.own_structures import GEMMI_ERRORS

_ATOMS: Final = re.compile(rb"\nloop_[ \t\r]*\n_atom_site\..*?\n#", re.DOTALL)
_SCHEME: Final = ("asym_id", "pdb_strand_id", "entity_id", "auth_mon_id", "seq_id")


@dataclass(frozen=True)
class NamedChain:
    """A protein chain with coordinates, by all of its names.

    Parameters
    ----------
    chain_key
        ``<entry>_<author chain>``.
    label_asym_id, auth_asym_id
        The chain's name as the archive and as the authors have it.
    entity
        Number of the entity in its entry, ``None`` if the file states none.
    sequence
        One-letter codes, as :class:`scalefold.raw.mmcif.Chain` has them.
    num_observed
        Residues with atoms.
    """

    chain_key: str
    label_asym_id: str
    auth_asym_id: str
    entity: str | None
    sequence: str
    num_observed: int


@dataclass(frozen=True, eq=False)
class Outline(EntryFacts):
    """An entry without its atoms."""

    chains: tuple[NamedChain, ...]


def read_outline(path: Path) -> Outline:
    """Read an entry's chains. The atoms of an archive's file are skipped, which is faster.

    Raises as `read_entry`, except for faults of atoms alone.
    """
    if ".cif" in path.suffixes:
        block = _block(_ATOMS.sub(b"\n#", read_bytes(path, MAX_STRUCTURE_BYTES), count=1))
        if block is not None and (outline := _outline(block, path)) is not None:
            return outline
    entry = read_entry(path)
    chains = tuple(
        NamedChain(c.chain_key, c.label_asym_id, c.auth_asym_id, None, c.sequence, number)
        for c in entry.chains
        for number in (int(c.atom_mask.any(1).sum()),)
    )
    return Outline(entry.entry_id, entry.method, entry.resolution, entry.release_date, chains)


def _block(content: bytes) -> gemmi.cif.Block | None:
    try:
        document = gemmi.cif.read_string(content.decode("utf-8", errors="replace"))
    except GEMMI_ERRORS:
        return None  # `read_entry` says what is wrong
    return document[0] if len(document) else None


def _outline(block: gemmi.cif.Block, path: Path) -> Outline | None:
    """Return what a file of the archive states, ``None`` if this is another file."""
    observed = _observed(block.find("_pdbx_poly_seq_scheme.", _SCHEME))
    if not observed:
        return None
    source = str(path)
    entry_id = entry_name(block, path.name.partition(".")[0]).lower()
    chains = tuple(
        NamedChain(f"{entry_id}_{auth}", label, auth, entity, _letters(names), number)
        for label, names in protein_monomers(block, source).items()
        for auth, entity, number in observed.get(label, ())
    )
    if not chains:
        return None
    return Outline(**vars(read_facts(block, entry_id, source)), chains=chains)


def _letters(names: Mapping[int, str]) -> str:
    return "".join(map(parent, names.values()))


def _observed(scheme: Iterable[Iterable[str]]) -> dict[str, list[tuple[str, str, int]]]:
    """Return (author chain, entity, residues with atoms) of each label_asym_id that has some."""
    residues: dict[tuple[str, str, str], set[str]] = {}
    for label, auth, entity, residue, number in scheme:
        if residue not in ABSENT:
            residues.setdefault((label, auth, entity), set()).add(number)
    text = gemmi.cif.as_string
    found: dict[str, list[tuple[str, str, int]]] = {}
    for (label, auth, entity), numbers in residues.items():
        found.setdefault(text(label), [(text(auth), text(entity), len(numbers))])
    return found
