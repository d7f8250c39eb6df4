"""ModelCIF and PDB files of a prediction are read by others as what was predicted."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import gemmi
import modelcif.reader
import numpy as np
import pytest
import torch
from Bio.PDB import MMCIFParser, PDBParser

from scalefold.chem.residues import ATOM37, ATOM37_MASK, RESTYPE_INDEX, RESTYPE_NAMES
from scalefold.predict.model_cif import model_cif
from scalefold.predict.pdb_file import pdb
from scalefold.raw.mmcif import read_entry

NAMES = (*RESTYPE_NAMES, "UNK")


@pytest.fixture(scope="module")
def atoms():
    """All residue types, each with all of its atoms; the unknown one has none."""
    generator = torch.Generator().manual_seed(0)
    aatype = torch.arange(21)
    mask = torch.tensor(ATOM37_MASK)[aatype] > 0
    positions = torch.randn(21, 37, 3, generator=generator) * 20
    return aatype, positions, mask, torch.linspace(1.0, 99.0, 21)


def by_name(atoms):
    """(Residue number, atom) -> position and pLDDT."""
    aatype, positions, mask, confidence = atoms
    return {
        (i + 1, ATOM37[j]): (positions[i, j].numpy(), float(confidence[i]))
        for i in range(len(aatype))
        for j in range(37)
        if mask[i, j]
    }


def check(found, atoms):
    expected = by_name(atoms)
    assert found.keys() == expected.keys()
    for key, (position, confidence) in expected.items():
        np.testing.assert_allclose(found[key][0], position, atol=5.1e-4)  # three digits are written
        assert found[key][1] == pytest.approx(confidence, abs=5.1e-3)


def of_gemmi(structure):
    return {
        (residue.seqid.num, atom.name): (atom.pos.tolist(), atom.b_iso)
        for residue in structure[0]["A"]
        for atom in residue
    }


def of_biopython(structure):
    return {
        (residue.id[1], atom.name): (atom.coord, atom.bfactor)
        for residue in structure[0]["A"]
        for atom in residue
    }


def test_pdb(atoms):
    text = pdb("a long name, of more than four letters", *atoms)
    structure = gemmi.read_pdb_string(text)
    check(of_gemmi(structure), atoms)
    assert [residue.name for residue in structure[0]["A"]] == list(RESTYPE_NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(of_biopython(PDBParser().get_structure("x", io.StringIO(text))), atoms)


def test_model_cif(atoms):
    text = model_cif("P12345", *atoms, ptm=0.5, pae_file="x.pae.json", details="of a test")
    structure = gemmi.make_structure_from_block(gemmi.cif.read_string(text).sole_block())
    check(of_gemmi(structure), atoms)
    assert list(structure.entities[0].full_sequence) == list(NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(of_biopython(MMCIFParser().get_structure("x", io.StringIO(text))), atoms)


def test_model_cif_has_the_confidences_of_the_dictionary(atoms):
    text = model_cif("P12345", *atoms, ptm=0.5, pae_file="x.pae.json", details="of a test")
    (system,) = modelcif.reader.read(io.StringIO(text))
    ((model,),) = system.model_groups
    of_kind: dict[tuple[str, str], list[Any]] = {}
    for metric in model.qa_metrics:
        of_kind.setdefault((metric.mode, metric.type), []).append(metric)
    assert {kind: len(metrics) for kind, metrics in of_kind.items()} == {
        ("global", "pLDDT"): 1,
        ("global", "pTM"): 1,
        ("local", "pLDDT"): 20,  # the unknown one has no atom that it could be of
    }
    local = {m.residue.seq_id: m.value for m in of_kind["local", "pLDDT"]}
    assert list(local.values()) == pytest.approx(atoms[3][:20].tolist(), abs=5e-3)
    files = (
        gemmi.cif.read_string(text).sole_block().get_mmcif_category("_ma_entry_associated_files")
    )
    assert (files["file_url"], files["file_format"]) == (["x.pae.json"], ["json"])


def test_what_model_cif_refers_to_is_there(atoms):
    """As the dictionary asks: residues with a confidence have atoms."""
    text = model_cif("P12345", *atoms, ptm=0.5, pae_file="x.pae.json", details="of a test")
    block = gemmi.cif.read_string(text).sole_block()
    residues = [
        {tuple(row) for row in block.find(f"_{category}.label_", ["asym_id", "seq_id", "comp_id"])}
        for category in ("ma_qa_metric_local", "atom_site")
    ]
    assert residues[0] == residues[1]


def test_model_cif_is_read_as_a_structure_to_train_on(atoms, tmp_path: Path) -> None:
    aatype, positions, mask, _ = atoms
    (tmp_path / "P12345.cif").write_text(model_cif("P12345", *atoms))
    (chain,) = read_entry(tmp_path / "P12345.cif").chains
    np.testing.assert_array_equal(chain.aatype, aatype)
    np.testing.assert_array_equal(chain.atom_mask, mask)
    others = aatype.numpy() != RESTYPE_INDEX["R"]  # NH1 and NH2 of arginine may change places
    expected = np.where(mask[..., None], positions, 0.0)
    np.testing.assert_allclose(chain.positions[others], expected[others], atol=1e-3)
