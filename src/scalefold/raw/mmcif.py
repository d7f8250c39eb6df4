"""Read protein chains from mmCIF and PDB files.

One entry file gives one :class:`Chain` for every protein chain that has coordinates. The semantics
are AlphaFold2's (Jumper et al. 2021, Suppl. sec. 1.2.1), with one known fault fixed: of several
alternative monomers at one position of the sequence (microheterogeneity), the first counts, so
sequence positions never shift.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import gemmi
import numpy as np
from numpy.typing import NDArray

from scalefold.chem.modified_residues import parent, parents
from scalefold.chem.residues import RESTYPE_INDEX, UNKNOWN
from scalefold.errors import InputError
from scalefold.raw.atom_site import AtomTable
from scalefold.raw.chain_key import entry_of, short_form
from scalefold.raw.compressed import MAX_STRUCTURE_BYTES, SHRINK, read_bytes
from scalefold.raw.mmcif_facts import (
    EntryFacts,
    entry_name,
    protein_monomers,
    read_facts,
    states_residues,
)
from scalefold.raw.own_structures import GEMMI_ERRORS, complete_block, read_pdb

_PDB_SUFFIXES: Final = frozenset({".pdb", ".ent"})
_REPLACE: Final = (
    "Download it again, or write it again if it is yours. If the mirror's copy is damaged, use "
    "another mirror (data.mirrors.mmcif)"
)
_CLOSED_BEFORE_ATOMS: Final = re.compile(rb"\n#[ \t\r]*\nloop_[ \t\r]*\n_atom_site\.")


@dataclass(frozen=True, eq=False)
class Chain:
    """One protein chain: its full sequence, and the atoms that the experiment observed.

    Parameters
    ----------
    chain_key
        Lower-case entry id, underscore, *author* chain, as in ``1abc_A``.
    entry_id
        Lower-case entry id; not assumed to have four characters.
    label_asym_id, auth_asym_id
        The chain's name as the archive and as the authors have it.
    sequence
        One-letter codes of all ``N`` residues of the construct, with or without coordinates.
        A modified residue has its parent's letter if that is known, otherwise ``X``.
    other_parents
        Residue, from 0 -> letters that other tables give it, if tables disagree.
    aatype
        ``[N]`` uint8, AlphaFold2 residue order, 20 for everything but the 20 amino acids.
    positions
        ``[N, 37, 3]`` float32, Å, zero where there is no atom.
    atom_mask
        ``[N, 37]`` bool, true where an atom was observed.
    method, resolution, release_date
        Of the entry, see :class:`~scalefold.raw.mmcif_facts.EntryFacts`.
    """

    chain_key: str
    entry_id: str
    label_asym_id: str
    auth_asym_id: str
    sequence: str
    other_parents: Mapping[int, str]
    aatype: NDArray[np.uint8]
    positions: NDArray[np.float32]
    atom_mask: NDArray[np.bool_]
    method: str
    resolution: float | None
    release_date: datetime.date | None

    def __len__(self) -> int:
        """Return the number of residues, observed or not."""
        return len(self.sequence)


@dataclass(frozen=True, eq=False)
class Entry(EntryFacts):
    """One archive entry and its protein chains, in the file's order."""

    chains: tuple[Chain, ...]

    def chain(self, chain_key: str) -> Chain:
        """Return the chain with this key, whose entry may have either form of its name.

        Raises
        ------
        InputError
            The entry has no such protein chain.
        """
        for chain in self.chains:
            if short_form(chain.chain_key) == short_form(chain_key):
                return replace(chain, chain_key=chain_key, entry_id=entry_of(chain_key))
        known = ", ".join(chain.chain_key for chain in self.chains)
        raise InputError(
            f"entry {self.entry_id} has no protein chain {chain_key!r} with coordinates; it has "
            f"{known}. Name one of these (the part after '_' is the author's chain name)."
        )


def read_entry(path: Path, max_bytes: int = MAX_STRUCTURE_BYTES, mend: str = SHRINK) -> Entry:
    """Read all protein chains with coordinates of one file.

    Parameters
    ----------
    path
        ``*.pdb`` or ``*.ent``, otherwise mmCIF; each may be gzipped. The entry has the file's name,
        unless it is an archive's mmCIF file, which states the name.
    max_bytes, mend
        A file that is larger, unpacked, is refused; what to do then.

    Returns
    -------
    Entry
        Chains of the first model. Per atom, the alternative location of highest occupancy counts,
        the first of equals. Selenium of MSE is stored as SD. NH1 and NH2 of arginine are swapped
        where NH1 is the one farther from CD.

    Raises
    ------
    InputError
        The file is missing, truncated, not gzip though named so, too large, of another format, or
        has no protein chain with coordinates.
    """
    content, source = read_bytes(path, max_bytes, mend), str(path)
    name, _, _ = path.name.partition(".")
    if _PDB_SUFFIXES.isdisjoint(path.suffixes):
        return parse_entry(content, source, name)
    block = read_pdb(content, source)
    return _entry(block, block, name, source)


def parse_entry(content: bytes, source: str, name: str = "") -> Entry:
    """Read all protein chains from the (uncompressed) bytes of an mmCIF file.

    ``source`` names the file in error messages. ``name`` is the entry's if the file is not an
    archive's. See :func:`read_entry` for the rest.
    """
    try:
        document = gemmi.cif.read_string(content.decode("utf-8", errors="replace"))
    except GEMMI_ERRORS as error:
        raise InputError(
            f"{source}: not readable as mmCIF: {_located(error)}. {_REPLACE}. Or leave "
            "the entry out."
        ) from error
    if len(document) == 0:
        raise InputError(f"{source}: holds no mmCIF data block. {_REPLACE}.")
    _check_end(content, source)
    block = document[0]
    name = entry_name(block, name)
    whole = block if states_residues(block) else complete_block(block, source)
    return _entry(block, whole, name, source)


def _entry(head: gemmi.cif.Block, block: gemmi.cif.Block, name: str, source: str) -> Entry:
    """Return the entry of a block that states residues; ``head`` states its facts."""
    entry_id = name.lower()
    monomers = protein_monomers(block, source)
    if not monomers:
        raise InputError(f"{source}: entry {entry_id} has no protein chain. Leave it out.")
    facts = read_facts(head, name, source)
    atoms = AtomTable.read(block, source)
    found = (_chain(facts, label, residues, atoms) for label, residues in monomers.items())
    chains = tuple(chain for chain in found if chain is not None)
    if not chains:
        raise InputError(
            f"{source}: entry {entry_id} has {len(monomers)} protein chain(s) but coordinates for "
            "none of them. Leave it out."
        )
    _check_keys(chains, source)
    return Entry(**vars(facts), chains=chains)


def _chain(
    facts: EntryFacts, label_asym_id: str, residues: dict[int, str], atoms: AtomTable
) -> Chain | None:
    """Return the chain of these monomers (sequence number -> name), if it has atoms."""
    rows = atoms.rows_by_chain.get(label_asym_id)
    if rows is None:
        return None
    positions, atom_mask = atoms.place(rows, residues)
    if not atom_mask.any():
        return None
    auth_asym_id = atoms.auth_asym_id[rows[0]]
    sequence = "".join(parent(name) for name in residues.values())
    others = enumerate(parents(name)[1:] for name in residues.values())
    return Chain(
        chain_key=f"{facts.entry_id}_{auth_asym_id}",
        entry_id=facts.entry_id,
        label_asym_id=label_asym_id,
        auth_asym_id=auth_asym_id,
        sequence=sequence,
        other_parents={i: letters for i, letters in others if letters},
        aatype=np.array([RESTYPE_INDEX.get(s, UNKNOWN) for s in sequence], np.uint8),
        positions=positions,
        atom_mask=atom_mask,
        method=facts.method,
        resolution=facts.resolution,
        release_date=facts.release_date,
    )


def _check_keys(chains: Sequence[Chain], source: str) -> None:
    labels: dict[str, list[str]] = {}
    for chain in chains:
        labels.setdefault(chain.chain_key, []).append(chain.label_asym_id)
    for key, names in labels.items():
        if len(names) > 1:
            raise InputError(
                f"{source}: protein chains {', '.join(names)} (label_asym_id) share the author "
                f"chain {key!r}, so the key is ambiguous. Leave the entry out."
            )


def _located(error: Exception) -> str:
    """Return gemmi's message, with ``line 7: `` in place of ``string:7:0(103): ``."""
    return re.sub(r"^string:(\d+)[\d:()]*\s*", r"line \1: ", str(error))


def _check_end(content: bytes, source: str) -> None:
    """Refuse a file that was cut at the end of a line, so that the rest is valid mmCIF.

    Archives and most programs close every category with a line ``#``. If the category before the
    coordinates is closed, the last one must be, too.
    """
    last = content[-4096:].rstrip().rpartition(b"\n")[2].strip()
    if last != b"#" and _CLOSED_BEFORE_ATOMS.search(content):
        raise InputError(
            f"{source}: ends with {last[:60].decode('utf-8', 'replace')!r}, expected '#', which "
            f"closes its other categories: the file was cut. {_REPLACE}."
        )
