"""Predicted structures as PDB files."""

from __future__ import annotations

import gemmi
from torch import Tensor

from scalefold.chem.residues import ATOM37, RESTYPE_NAMES


def pdb(name: str, aatype: Tensor, positions: Tensor, mask: Tensor, plddt: Tensor) -> str:
    """Return one predicted chain, A, in PDB format.

    Parameters
    ----------
    name : str
        Of the entry; a remark says it in full.
    aatype : Tensor, shape (N,)
        Residue types 0-20; 20 becomes UNK.
    positions : Tensor, shape (N, 37, 3)
        Å.
    mask : Tensor, shape (N, 37)
        The atom was predicted.
    plddt : Tensor, shape (N,)
        0 to 100: the B-factor of the residue's atoms.
    """
    chain = gemmi.Chain("A")
    rows = zip(aatype.tolist(), positions.tolist(), mask.tolist(), plddt.tolist(), strict=True)
    for number, (kind, atoms, present, confidence) in enumerate(rows, 1):
        residue = gemmi.Residue()
        residue.name, residue.seqid = (*RESTYPE_NAMES, "UNK")[kind], gemmi.SeqId(number, " ")
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
    structure = gemmi.Structure()
    structure.name = name
    structure.add_model(model)
    structure.info = gemmi.InfoMap({"_struct.title": name})
    structure.raw_remarks = ["REMARK   1 B-FACTORS ARE PLDDT, 0 TO 100"]
    return structure.make_pdb_string()
