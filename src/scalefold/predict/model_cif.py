"""Predicted structures as ModelCIF, the archive's format for models that are computed.

Its dictionary, https://mmcif.wwpdb.org/dictionaries/mmcif_ma.dic, extends that of mmCIF. So all
that reads mmCIF reads these files.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gemmi
import ihm
import modelcif
import modelcif.associated
import modelcif.dumper
import modelcif.model
import modelcif.protocol
import modelcif.qa_metric
import torch
from torch import Tensor

import scalefold
from scalefold.chem.residues import ATOM37, ATOM37_INDEX, RESTYPES_WITH_X

_SOFTWARE = modelcif.Software(
    name="ScaleFold",
    classification="model building",
    description="Structure prediction with models of AlphaFold2's kind",
    location="https://arxiv.org/abs/2404.11068",
    version=scalefold.__version__,
)


class _GlobalPlddt(modelcif.qa_metric.Global, modelcif.qa_metric.PLDDT):
    """Predicted lDDT-CA, mean over all residues."""

    name = "pLDDT"
    software = _SOFTWARE


class _LocalPlddt(modelcif.qa_metric.Local, modelcif.qa_metric.PLDDT):
    """Predicted lDDT-CA of a residue."""

    name = "pLDDT"
    software = _SOFTWARE


class _Ptm(modelcif.qa_metric.Global, modelcif.qa_metric.PTM):
    """Predicted TM-score."""

    name = "pTM"
    software = _SOFTWARE


class _PaeFile(modelcif.associated.File):
    file_format = "json"
    file_content = "QA metrics"


class _Model(modelcif.model.AbInitioModel):
    """Makes its atoms while they are written."""

    def __init__(self, chain: Any, atoms: Any, name: str) -> None:
        super().__init__(modelcif.Assembly((chain,), name="predicted chain"), name=name)
        self._chain, self._positions_and_more = chain, atoms

    def get_atoms(self) -> Iterator[Any]:
        """Yield the atoms of all residues."""
        for number, (atoms, present, confidence) in enumerate(self._positions_and_more, 1):
            for slot, there in enumerate(present):
                if there:
                    x, y, z = atoms[slot]
                    yield modelcif.model.Atom(
                        asym_unit=self._chain,
                        seq_id=number,
                        atom_id=ATOM37[slot],
                        type_symbol=ATOM37[slot][0],
                        x=x,
                        y=y,
                        z=z,
                        biso=confidence,
                        occupancy=1.0,
                    )


def model_cif(
    name: str,
    aatype: Tensor,
    positions: Tensor,
    mask: Tensor,
    plddt: Tensor,
    *,
    ptm: float | None = None,
    pae_file: str | None = None,
    details: str = "",
) -> str:
    """Return one predicted chain as ModelCIF.

    Parameters
    ----------
    aatype : Tensor, shape (N,)
        Residue types 0-20; 20 becomes UNK.
    positions : Tensor, shape (N, 37, 3)
        Å.
    mask : Tensor, shape (N, 37)
        The atom was predicted.
    plddt : Tensor, shape (N,)
        0 to 100; also the B-factor of the residue's atoms.
    pae_file : str, optional
        Name of the file with the predicted aligned errors, beside this one.
    details : str, optional
        Which weights and settings made it.
    """
    alphabet = ihm.LPeptideAlphabet()
    letters = (RESTYPES_WITH_X[kind] for kind in aatype.tolist())
    sequence = [alphabet["UNK" if letter == "X" else letter] for letter in letters]
    entity = modelcif.Entity(sequence, description=name)
    chain = modelcif.AsymUnit(entity, id="A")
    rows = list(zip(positions.tolist(), mask.tolist(), plddt.tolist(), strict=True))
    model = _Model(chain, rows, name)
    model.qa_metrics.append(_GlobalPlddt(float(plddt.mean())))
    if ptm is not None:
        model.qa_metrics.append(_Ptm(ptm))
    model.qa_metrics += [  # of residues with atoms: the dictionary refers them to these
        _LocalPlddt(chain.residue(number), value)
        for number, (_, present, value) in enumerate(rows, 1)
        if any(present)
    ]
    protocol = modelcif.protocol.Protocol()
    protocol.steps.append(
        modelcif.protocol.ModelingStep(
            input_data=entity, output_data=model, software=_SOFTWARE, details=details or None
        )
    )
    system = modelcif.System(title=name, id=name)
    system.protocols.append(protocol)
    system.model_groups.append(modelcif.model.ModelGroup([model], name="prediction"))
    if pae_file is not None:
        file = _PaeFile(pae_file, details="predicted aligned errors, as AlphaFold DB has them")
        system.repositories.append(modelcif.associated.Repository(None, [file]))
    text = io.StringIO()
    modelcif.dumper.write(text, [system])
    return text.getvalue()


def read_model_cif(path: Path, num_residues: int) -> tuple[Tensor, Tensor]:
    """Return positions (N, 37, 3), Å, and mask (N, 37) of a chain that `model_cif` wrote."""
    positions = torch.zeros(num_residues, 37, 3, dtype=torch.float64)
    mask = torch.zeros(num_residues, 37, dtype=torch.bool)
    for residue in gemmi.read_structure(str(path))[0][0]:
        assert residue.label_seq is not None, "ModelCIF numbers residues"
        for atom in residue:
            place = residue.label_seq - 1, ATOM37_INDEX[atom.name]
            positions[place], mask[place] = torch.tensor(atom.pos.tolist()), True
    return positions, mask
