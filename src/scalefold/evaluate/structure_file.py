"""Predicted structures as mmCIF files, with the pLDDT of each residue as B-factor."""

from __future__ import annotations

from pathlib import Path

import gemmi
from torch import Tensor

from scalefold.chem.residues import ATOM37, RESTYPE_NAMES
from scalefold.io.atomic import write_bytes


def structure_path(folder: Path, chain_key: str) -> Path:
    """Where a chain's predicted structure is written."""
    return folder / f"{chain_key}.cif"


def write_structure(
    path: Path, name: str, aatype: Tensor, positions: Tensor, mask: Tensor, plddt: Tensor
) -> None:
    """Write one predicted chain.

    Parameters
    ----------
    path : Path
        ``*.cif``; its folder exists.
    name : str
        Of the data block.
    aatype : Tensor, shape (N,)
        Residue types 0-20; 20 becomes UNK.
    positions : Tensor, shape (N, 37, 3)
        Å.
    mask : Tensor, shape (N, 37)
        The atom was predicted.
    plddt : Tensor, shape (N,)
        0 to 100.

    Raises
    ------
    InputError
        If the disk is full or the folder may not be written.
    """
    names = [(*RESTYPE_NAMES, "UNK")[kind] for kind in aatype.tolist()]
    chain = gemmi.Chain("A")
    rows = zip(names, positions.tolist(), mask.tolist(), plddt.tolist())
    for number, (residue_name, atoms, present, confidence) in enumerate(rows, 1):
        residue = gemmi.Residue()
        residue.name, residue.seqid = residue_name, gemmi.SeqId(number, " ")
        residue.subchain, residue.label_seq, residue.entity_id = "A", number, "1"
        residue.entity_type = gemmi.EntityType.Polymer
        for slot, there in enumerate(present):
            if there:
                atom = gemmi.Atom()
                atom.name, atom.element = ATOM37[slot], gemmi.Element(ATOM37[slot][0])
                atom.pos = gemmi.Position(*atoms[slot])
                atom.b_iso, atom.occ = confidence, 1.0
                residue.add_atom(atom)
        chain.add_residue(residue)
    model = gemmi.Model(1)
    model.add_chain(chain)
    entity = gemmi.Entity("1")
    entity.entity_type, entity.polymer_type = gemmi.EntityType.Polymer, gemmi.PolymerType.PeptideL
    entity.subchains, entity.full_sequence = ["A"], names
    structure = gemmi.Structure()
    structure.name = name
    structure.add_model(model)
    structure.entities.append(entity)
    structure.info = gemmi.InfoMap({"_exptl.method": "THEORETICAL MODEL"})
    block = structure.make_mmcif_block()
    for component in block.find("_chem_comp.", ["id", "type"]):
        component[1] = "'peptide linking'" if component[0] == "GLY" else "'L-peptide linking'"
    write_bytes(path, (block.as_string() + "#\n").encode())
